# SPDX-FileCopyrightText: Copyright (c) 2026 The nemo_polar authors
# SPDX-License-Identifier: Apache-2.0
"""What runs inside a provider's sandbox around our commands, as text for a POSIX shell. Runs nothing itself.

A provider promises a command line, an exit code and, mostly, an end to the command's first process. The rest of what a sandbox
owes is done here: standard input, output as bytes and within bounds, a deadline, and the end of the whole tree, which is found
by a variable that its processes carry (one that wipes its environment and leaves its session gets away until the sandbox ends).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from shlex import join, quote

from nemo_polar.errors import SandboxError

MARK = "POLAR_GYM_TREE"
TOOLS = ("tar", "grep", "mkdir", "mv", "rm", "cat", "wc", "sleep", "env", "head", "tail", "chmod")
"""Programs that must be there."""
MISSING, ELSEWHERE = 3, 4
"""Exit codes of ``find_file`` and ``pack``: there is nothing at the path; it leads elsewhere or is something else."""

LOOK = f"""
echo "boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)"
echo "mounts=$(readlink /proc/self/ns/mnt 2>/dev/null)"
echo "network=$(readlink /proc/self/ns/net 2>/dev/null)"
for tool in {" ".join(TOOLS)}; do command -v "$tool" >/dev/null 2>&1 || echo "missing=$tool"; done
command -v setsid >/dev/null 2>&1 && echo "session=setsid"
if unshare -n true >/dev/null 2>&1; then echo "offline=unshare -n"
elif unshare -r -n true >/dev/null 2>&1; then echo "offline=unshare -r -n"; fi
if [ -r /proc/net/dev ] && ! tail -n +3 /proc/net/dev | grep -qv '^ *lo:'; then echo "alone=yes"; fi
true
"""
"""Says, as key=value lines, where it is and what there is."""

_BECOME = 'exec "$@"'
_LOOPBACK = f"ip link set lo up 2>/dev/null || ifconfig lo up 2>/dev/null; {_BECOME}"
"""A new network namespace has a loopback interface, but it is down."""

_END_TREE = """
end_tree() {
  tries=0
  while found=$(grep -lsF -e "$needle" /proc/[0-9]*/environ); [ -n "$found" ]; do
    for file in $found; do pid=${file#/proc/}; kill -9 "${pid%/environ}" 2>/dev/null; done
    tries=$((tries + 1))
    [ "$tries" -gt 400 ] && return 1
    sleep 0.02 2>/dev/null || sleep 1
  done
  return 0
}
"""

_REPORT = """
cap() {
  size=0
  if [ -f "$1" ] && [ ! -L "$1" ]; then size=$(($(wc -c < "$1"))); fi
  if [ "$size" -gt "$limit" ]; then
    { head -c "$head" "$1"; printf '\\n[%d bytes left out]\\n' $((size - limit)); tail -c $((limit - head)) "$1"; } > "$1.cut"
    mv -f "$1.cut" "$1"
    size=$(($(wc -c < "$1")))
    cut=1
  fi
}
report() {
  left=0 late=0 nowhere=0 cut=0
  end_tree || left=1
  cap "$at.out"; out=$size
  cap "$at.err"; err=$size
  [ -e "$at.late" ] && late=1
  [ -e "$at.nowhere" ] && nowhere=1
  echo "polar-report left=$left late=$late nowhere=$nowhere cut=$cut out=$out err=$err"
}
"""

_RUN = """
(
{exports}
  cd {cwd} 2>/dev/null || {{ : > "$at.nowhere"; exit 125; }}
  {mark_name}={mark}
  export {mark_name}
  exec {argv}
) < {stdin} > "$at.out" 2> "$at.err" &
child=$!
(
  trap 'kill "$nap" 2>/dev/null; exit 0' TERM
  sleep "$1" & nap=$!
  wait "$nap"
  : > "$at.late"
  kill -9 "$child" 2>/dev/null
  end_tree
) < /dev/null > /dev/null 2>&1 &
dog=$!
wait "$child"; code=$?
{end_session}
kill "$dog" 2>/dev/null
wait "$dog" 2>/dev/null
report
exit "$code"
"""

_REPORT_LINE = re.compile(r"^polar-report left=(\d) late=(\d) nowhere=(\d) cut=(\d) out=(\d+) err=(\d+)\s*$", re.MULTILINE)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Report:
    """How a command ended, besides its exit code."""

    left: bool
    """Some of its processes would not die."""
    late: bool
    """It was killed at its deadline."""
    nowhere: bool
    """Its working folder is not there."""
    cut: bool
    """Output was over the limit."""
    out: int
    err: int
    """Bytes of output that wait to be fetched."""

    @classmethod
    def parse(cls, text: str) -> Report | None:
        """The report in a supervisor's own output; None when it did not come to that."""
        found = _REPORT_LINE.findall(text)
        if not found:
            return None
        left, late, nowhere, cut, out, err = map(int, found[-1])
        return cls(bool(left), bool(late), bool(nowhere), bool(cut), out, err)


@dataclass(frozen=True, slots=True)
class Place:
    """Where the supervisor of one command keeps its files, and how it knows the command's processes."""

    at: str
    """Path inside, without an ending."""
    mark: str
    """Ends with a character that no other mark continues with."""
    limit: int
    """Bytes of stdout, and of stderr, that are kept."""

    def _settings(self) -> str:
        needle = quote(f"{MARK}={self.mark}")
        return f"at={quote(self.at)}\nneedle={needle}\nlimit={self.limit}\nhead={self.limit // 2}\n"

    def finish(self) -> str:
        """Ends the command's processes and reports, when its supervisor did not come to it. Safe to repeat."""
        return f"{self._settings()}{_END_TREE}{_REPORT}report\n"

    def run(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        path: str,
        cwd: str,
        stdin: bool,
        session: str = "",
        offline: str = "",
    ) -> str:
        """The supervisor of one command, whose first argument is the deadline in seconds.

        Args:
            path: put before PATH, unless ``env`` has one. stdin: there is ``<at>.in`` to read. session: a program that starts
            a session of its own, if there is one. offline: a command line that takes the network away, if it is to be.

        Raises:
            SandboxError: a variable's name that a shell cannot export.
        """
        exports = [f"  PATH={quote(path)}:${{PATH:-/usr/local/bin:/usr/bin:/bin}}\n  export PATH"] if "PATH" not in env else []
        for name, value in env.items():
            if not _VARIABLE.fullmatch(name) or "\0" in value:
                raise SandboxError(f"{name!r} cannot be passed as an environment variable to a provider's sandbox")
            exports.append(f"  {name}={quote(value)}\n  export {name}")
        line = join(argv)
        if offline or session:  # through a shell, so that a missing command is reported as everywhere
            line = f"{session} {offline} /bin/sh -c {quote(_LOOPBACK if offline else _BECOME)} sh {line}".strip()
        script = _RUN.format(
            exports="\n".join(exports),
            cwd=quote(cwd),
            mark_name=MARK,
            mark=quote(self.mark),
            argv=line,
            stdin=quote(f"{self.at}.in") if stdin else "/dev/null",
            end_session='kill -9 "-$child" 2>/dev/null' if session else ":",
        )
        return f"{self._settings()}{_END_TREE}{_REPORT}{script}"


def supervise(script: str, seconds: float, keep: Sequence[str], finished: Sequence[str]) -> str:
    """The command line for a script that ``Place.run`` made, with an environment of its own but for PATH and ``keep``.

    Args:
        finished: ``Place.at`` of commands whose files are of no more use.
    """
    kept = "".join(f' ${{{name}+{name}="${name}"}}' for name in keep)
    clear = f"rm -f {' '.join(f'{quote(at)}.*' for at in finished)}; " if finished else ""
    return f'{clear}exec env -i PATH="$PATH"{kept} /bin/sh {quote(script)} {seconds:.3f}'


def end_all(mark: str) -> str:
    """Ends every process whose mark begins with ``mark``."""
    return f"needle={quote(f'{MARK}={mark}')}\n{_END_TREE}end_tree\n"


def make_folders(folders: Sequence[str], stage: str) -> str:
    """Makes the sandbox's folders where the image does not have them, and the supervisor's own, which must not be there yet."""
    lines = [
        f"[ -d {f} ] || mkdir -p {f} || exit 1\n[ -w {f} ] || {{ echo {f} cannot be written to >&2; exit 1; }}"
        for f in map(quote, folders)
    ]
    return "\n".join([*lines, f"umask 077; mkdir {quote(stage)}"])


_FIND = """
find_below() {
  while [ $# -gt 0 ]; do
    if [ -L "$at" ]; then exit 4; fi
    [ -d "$at" ] || exit 3
    at=$at/$1; shift
  done
}
"""


def _find(root: str, names: Sequence[str]) -> str:
    """Sets ``at`` to a path, no link followed on the way to it."""
    return f"{_FIND}at={quote(root)}\nfind_below {join(names)}\n"


def find_file(root: str, names: Sequence[str]) -> str:
    """Says the size of a plain file. Exits with ``MISSING`` or ``ELSEWHERE``."""
    look = 'if [ -L "$at" ]; then exit 4; fi\n[ -e "$at" ] || exit 3\n[ -f "$at" ] || exit 4\nwc -c < "$at"\n'
    return _find(root, names) + look


def pack(root: str, names: Sequence[str], archive: str, max_bytes: int) -> str:
    """Packs a folder into ``archive``, of which at most ``max_bytes`` + 1 are written, and says its size."""
    return (
        _find(root, names)
        + f"""
if [ -L "$at" ]; then exit 4; fi
[ -d "$at" ] || exit 3
cd "$at" || exit 4
archive={quote(archive)}
try() {{ {{ tar -cf - . 2> "$archive.err"; echo $? > "$archive.code"; }} | head -c {max_bytes + 1} > "$archive"; }}
try
if [ "$(cat "$archive.code")" != 0 ]; then chmod -R u+rwX . 2>/dev/null; try; fi
size=$(($(wc -c < "$archive")))
if [ "$size" -le {max_bytes} ] && [ "$(cat "$archive.code")" != 0 ]; then cat "$archive.err" >&2; exit 5; fi
echo "$size"
"""
    )


PLACE = """
place() {
  source=$1 mode=$2 at=$3; shift 3
  while [ $# -gt 0 ]; do
    if [ -L "$at" ] || { [ -e "$at" ] && [ ! -d "$at" ]; }; then echo "$at: a link or a file is in the way" >&2; exit 4; fi
    [ -d "$at" ] || mkdir -m 755 "$at" || exit 1
    at=$at/$1; shift
  done
  if [ -d "$at" ] && [ ! -L "$at" ]; then echo "$at is a folder, not a file" >&2; exit 4; fi
  rm -f "$at" && chmod "$mode" "$source" && mv "$source" "$at" || exit 1
}
"""
"""Of a script inside an archive of files to put: moves one of them to its path, through no link."""


def unpack(archive: str, folder: str, script: str) -> str:
    """Unpacks ``archive`` into the new folder ``folder``, runs ``script`` there if one is named, and removes both."""
    run = f"&& ( cd {quote(folder)} && /bin/sh ./{quote(script)} )"
    folder, archive = quote(folder), quote(archive)
    return f"mkdir -p {folder} && tar -xof {archive} -C {folder} {run}; code=$?; rm -rf {folder} {archive}; exit $code"
