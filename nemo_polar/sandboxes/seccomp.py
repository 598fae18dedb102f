# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""A small system call filter for what namespaces do not cover.

A network namespace does not hold back AF_VSOCK (which reaches a virtual machine's host) and io_uring can open sockets without
the socket call; kernel keyrings are shared by uid; a new user namespace gives back the capabilities that were dropped.
Everything else a process without capabilities may do is allowed: build tools, debuggers and test runners work as usual. Pure:
it only makes bytes.
"""

from __future__ import annotations

import errno
import platform
import struct

from nemo_polar.errors import SandboxError

# Classic BPF: load a word, jump if equal, jump if any bit is set, return.
_LOAD, _JUMP_EQ, _JUMP_GE, _JUMP_SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARG0 = 0, 4, 16  # offsets in struct seccomp_data
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CLONE_NEWUSER = 0x10000000
_X32 = 0x40000000
_FAMILIES = (1, 2, 10, 16)  # AF_UNIX, AF_INET, AF_INET6, AF_NETLINK

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_NUMBERS = {
    "x86_64": {"socket": 41, "clone": 56, "unshare": 272, "add_key": 248, "request_key": 249, "keyctl": 250,
               "perf_event_open": 298, "bpf": 321, "userfaultfd": 323},
    "aarch64": {"socket": 198, "clone": 220, "unshare": 97, "add_key": 217, "request_key": 218, "keyctl": 219,
                "perf_event_open": 241, "bpf": 280, "userfaultfd": 282},
}  # fmt: skip
_REFUSED = ("add_key", "request_key", "keyctl", "perf_event_open", "bpf", "userfaultfd")
_ABSENT = {"io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "clone3": 435}
"""Answered as an old kernel would, so that programs fall back (clone3's flags lie in memory, where no filter can look)."""


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("<HBBI", code, if_true, if_false, value)


def _refuse(number: int, error: int) -> bytes:
    return _op(_JUMP_EQ, number, 0, 1) + _op(_RETURN, _ERRNO | error)


def program(machine: str | None = None) -> bytes:
    """The filter for ``machine`` (default: this one), as the kernel's ``sock_filter`` array.

    Raises:
        SandboxError: the system call numbers of that architecture are not known here.
    """
    machine = machine or platform.machine()
    if machine not in _AUDIT_ARCH:
        raise SandboxError(f"no system call filter for {machine}; the local sandbox runs on {' and '.join(_AUDIT_ARCH)}")
    numbers = _NUMBERS[machine]
    ops = [
        # Another architecture's calls (32-bit ones on a 64-bit kernel) have other numbers: none of them.
        _op(_LOAD, _ARCH) + _op(_JUMP_EQ, _AUDIT_ARCH[machine], 1, 0) + _op(_RETURN, _ERRNO | errno.ENOSYS),
        _op(_LOAD, _NUMBER) + _op(_JUMP_GE, _X32, 0, 1) + _op(_RETURN, _ERRNO | errno.ENOSYS),
    ]
    ops += [_refuse(number, errno.ENOSYS) for number in _ABSENT.values()]
    ops += [_refuse(numbers[name], errno.EPERM) for name in _REFUSED]
    for name in ("clone", "unshare"):
        check = _op(_LOAD, _ARG0) + _op(_JUMP_SET, _CLONE_NEWUSER, 0, 1)
        check += _op(_RETURN, _ERRNO | errno.EPERM) + _op(_RETURN, _ALLOW)
        ops.append(_op(_JUMP_EQ, numbers[name], 0, len(check) // 8) + check)
    check = _op(_LOAD, _ARG0)
    for family in _FAMILIES:
        check += _op(_JUMP_EQ, family, 0, 1) + _op(_RETURN, _ALLOW)
    check += _op(_RETURN, _ERRNO | errno.EAFNOSUPPORT)
    ops.append(_op(_JUMP_EQ, numbers["socket"], 0, len(check) // 8) + check)
    ops.append(_op(_RETURN, _ALLOW))
    return b"".join(ops)
