# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The harness matrix (`make harness-matrix`): real CLIs against a scripted model that answers as badly as a policy can.

A cell is one harness in one scenario with one model family: a run of nemo_polar, unmodified, sealed in the local sandbox, whose
engine-side log the audit compares everything with. ``scenarios`` says what the model does, ``model`` does it, ``writer`` writes
it as a family does, ``tools`` knows what each harness calls its tools, ``wire`` is the connection where it goes wrong, ``cell``
runs one cell and ``run`` all of them; ``rules`` says what must hold, ``lineage`` whether kinds and parents are right, ``table``
writes it down.
"""
