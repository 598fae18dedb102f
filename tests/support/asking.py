# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""The smallest harness there is, for the `shell` adapter: a Python program that makes one call and ends."""

ASK = (
    "import json, os, urllib.request as u; r = u.Request(os.environ['POLAR_BASE_URL'] + '/chat/completions', "
    "json.dumps({'model': 'polar', 'messages': [{'role': 'user', 'content': os.environ['POLAR_INSTRUCTION']}]}).encode(), "
    "{'Authorization': 'Bearer ' + os.environ['POLAR_API_KEY'], 'Content-Type': 'application/json'}); u.urlopen(r).read()"
)
