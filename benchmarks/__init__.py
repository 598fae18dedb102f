# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""Measurements of the package, run from a clone: ``polar bench``. Not part of the wheel; nothing in the package needs it."""
