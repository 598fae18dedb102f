# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The fields of a row that belong to Polar. Standard library and pydantic only, so that Gym's data tools can read it."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class TaskData(BaseModel):
    model_config = ConfigDict(extra="allow")

    polar_task: dict[str, Any] | None = Field(
        default=None,
        description="The task: id, instruction, files, verifier, budget, sandbox options, metadata. Rows without it need a "
        "'verifier' in the servers' configuration.",
        json_schema_extra={"consumed_by": ["verify", "prompt"]},
    )
    polar_workspace: dict[str, Any] | None = Field(
        default=None,
        description="For agents other than Polar's own: what the agent left, relative path to text.",
        json_schema_extra={"consumed_by": ["verify"]},
    )
