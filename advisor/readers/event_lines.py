"""What single lines of a log say beside numbers: a table of rules, each with the literal texts it needs.

The literals serve a fast search through the whole log; the pattern then judges the line. Named groups of digits become
the event's numbers (`step__2` is `step` in another alternative), `path` tells the step of a checkpoint. First match
wins, so that causes stand before consequences.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from advisor.readers.durations import duration_seconds
from advisor.readers.end_lines import END_RULES
from advisor.readers.line_rule import rule as _rule
from advisor.readers.memory_messages import memory_sizes

TEXT_LENGTH = 300  # of an event's text
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CODE = re.compile(
    r"\s*(?:[+>]\s|\|\s(?!.*\|)|#|//|\"\"\"|'''|(?:torch|self|logg\w+|warnings|parser|printf?|std)\b[\w.:]*\s?[(=]"
    r"|(?:elif|else|except|for|if|while|with|def|class|import|from|raise|return|try|assert|async|await|fn|let|void)\b"
    r"[\s.(:]?(?=[^:]*[(\[{\"'=;:]))"
)
_FSTRING = re.compile(r"""(?:\bf["'].*\{|\bprint\w*\(|\bprintf|\blog\w*\.\w+\(|\braise \w|\{\w+(?::[^}]*)?\})""")
_SIGNALS = {"SIGHUP": 1, "SIGINT": 2, "SIGQUIT": 3, "SIGABRT": 6, "SIGKILL": 9, "SIGSEGV": 11, "SIGTERM": 15}
# time stamps, levels, module names and ranks in front of what is said
_FRONT = re.compile(
    r"(?:\[?\d{4}[-/]\d\d[-/]\d\d[ T]\d\d:\d\d:\d\d[^\]\s|]*\]?|[IWEF]\d{4} [\d:.]+ +\d+ [^\]\n]{0,300}\]"
    r"|\[(?:INFO|WARN(?:ING)?|ERROR|[Rr]ank ?\d+"
    r"|default\d+|[a-z_]\w*(?:\.\w+)*(?::\d+:\w+)?)\]:?"
    r"|(?:INFO|WARNING|ERROR|DEBUG|CRITICAL)\b:?|(?:[a-z_]\w*\.)+\w+ (?=[|-])|\([\w.]+ pid=[^)]{1,60}\)|[|-](?= )|\s)+"
)
# installers: what they lack, a run may not need; if it does, it says so itself
_PACKAGES = re.compile(
    r"^\W*(?:(?:ERROR|WARNING): )?(?:Could not (?:install packages|find a version|build wheels)"
    r"|No matching distribution|pip's dependency|Failed building wheel"
    r"|npm (?:ERR!|error)|E: (?:Unable|Sub-process|Could|Failed|You don)|dpkg: "
    r"|Conda\w*Error|error: subprocess-exited)"
)
_NUMBER = re.compile(r"[-+]?\d+(?:\.\d*)?(?:[eE][-+]?\d+)?$")
RULES = (
    # --- memory: the system's killer first, its lines also say "out of memory"
    _rule(
        "host_memory",
        "Out of memory: Kill|oom-kill|oom_kill|OOMKilled|OOM Killed|running low on memory|OUT_OF_MEMORY|TERM_MEMLIMIT"
        "|Out Of Memory|exceeded memory limit",
        r"Out of memory: Kill|oom[-_]kill|OOM ?Killed|due to the node running low on memory|(?:State"
        r"|state)[ :=]*OUT_OF_MEMORY|TERM_MEMLIMIT|task \S+ Out Of Memory|exceeded memory limit",
    ),
    _rule(
        "out_of_memory",
        "out of memory|Out of memory|Ran out of memory|RESOURCE_EXHAUSTED|ALLOC_FAILED|recover from OOM"
        "|can't allocate memory|Unable to allocate|cudaErrorMemoryAllocation|Tried to allocate|cudaMalloc|OutOfMemory"
        "|MemoryError|OOM when allocating|annot allocate memory|bad_alloc|Failed to allocate",
        r"(?:CUDA|HIP|XPU|MPS backend|NPU) out of memory|error: out of memory|(?:^|:)\s*out of memory\s*$"
        r"|RESOURCE_EXHAUSTED|: Out of memory while trying|Ran out of memory in memory space|STATUS_ALLOC_FAILED"
        r"|recover from OOM|CPUAllocator: can't allocate|Unable to allocate [\d.]+ [KMGT]iB|cudaErrorMemoryAllocation"
        r"|Tried to allocate [\d.]+ [KMGT]|cudaMalloc failed|cudaMalloc[^:\n]*: out of memory"
        r"|OOM when allocating tensor"
        r"|^(?:\w+\.)*(?:OutOfMemoryError|MemoryError)\b|[Cc]annot allocate memory|std::bad_alloc"
        r"|CUDA driver error: out of memory|Failed to allocate [\d.]+ ?[KMGT]?i?B|ResourceExhaustedError",
    ),
    _rule(
        "disk_full",
        "No space left on device|quota exceeded|PytorchStreamWriter failed|unexpected pos ",
        r"^(?!.*inotify).*No space left on device|[Dd]isk quota exceeded|PytorchStreamWriter failed writing"
        r"|unexpected pos \d+ vs \d+",
    ),
    # --- schedulers
    _rule(
        "time_limit",
        "DUE TO TIME LIMIT|TERM_RUNLIMIT|exceeded limit|exceeded hard wallclock|State: TIMEOUT|ime limit|walltime",
        r"DUE TO TIME LIMIT|\bState: TIMEOUT\b|[Tt]ime limit (?:reached|exceeded)|[Rr]eached (?:the )?(?:time limit"
        r"|walltime)|TERM_RUNLIMIT|PBS: job killed: walltime (?P<used_seconds>\d+) exceeded limit"
        r" (?P<limit_seconds>\d+)|exceeded hard wallclock",
    ),
    _rule(
        "killed",
        "CANCELLED AT|DUE TO PREEMPTION|NODE FAIL|preempted|SpotInstance",
        r"STEP .*CANCELLED AT(?! \S+ BY)|CANCELLED AT(?! \S+ (?:BY|\*\*\*))|DUE TO PREEMPTION"
        r"|DUE TO NODE ?FAIL|(?:job|instance|node) (?:was "
        r"|has been )?preempted",
    ),
    # --- communication
    _rule(
        "nccl_timeout",
        "Watchdog caught collective|collective operation timeout|Timed out waiting|Socket Timeout|socket has timed out"
        "|timed out after",
        r"Watchdog caught collective operation timeout"
        r"(?:.*?SeqNum=(?P<sequence>\d+).*?Timeout\(ms\)=(?P<timeout_ms>\d+)\) ran for (?P<ran_ms>\d+))?"
        r"|Timed out waiting (?P<waited_ms>\d+) ?ms for \w+ operation|Socket Timeout"
        r"|client socket has timed out after (?P<timeout_seconds>\d+)",
    ),
    _rule(
        "nccl_error",
        "NCCL error|ncclSystemError|ncclRemoteError|ncclInternalError|ncclUnhandled|Connection closed by peer",
        r"NCCL error|nccl(?:System|Remote|Internal|UnhandledCuda)Error|Connection closed by peer",
    ),
    # --- numbers gone
    _rule(
        "diverged",
        "Loss is nan|loss is nan|loss is NaN|Loss is NaN|Minimum loss scale|loss scale already at minimum"
        "|cannot go lower|found NaN in|non-finite loss",
        r"[Ll]oss is [Nn]a[Nn]\b|Minimum loss scale reached|loss scale already at minimum|found NaN in"
        r"|[Nn]on-finite loss",
    ),
    _rule(
        "overflow",
        "overflow detected|OVERFLOW!|Gradient overflow",
        r"gradient overflow detected.*?(?:loss scale to: (?P<loss_scale>[\d.e+]+))?$"
        r"|OVERFLOW!.*?Attempted loss scale: [\d.e+]+, reducing to (?P<loss_scale__2>[\d.e+]+)"
        r"|OVERFLOW!|Gradient overflow\..*?reducing loss scale to (?P<loss_scale__3>[\d.e+]+)",
    ),
    # --- how processes ended
    _rule(
        "signal",
        "SignalException|SIGTERM|death signal|SIGHUP|Killing subprocess|Signal 15|eceived signal",
        r"[Rr]eceived signal:? (?P<signal__6>\d+)\b|got signal: (?P<signal>\d+)|[Cc]losing signal (?P<signal__4>SIG\w+)"
        r"|(?:[Rr]ece?i[ev]+d|[Cc]aught) (?P<signal__5>SIGTERM|SIGHUP)|[Rr]eceived (?P<signal__2>\d+) death signal"
        r"|Signal (?P<signal__3>\d+) \(SIGTERM\) received|Killing subprocess \d+",
    ),
    _rule(
        "killed",
        "Killed|SIGKILL|killed by signal|Terminated|Hangup",
        r"^\s*(?:Killed|Terminated|Hangup)\s*$|\bline \d+:\s+\d+ Terminated\b|^srun: error: .* (?:Killed"
        r"|Terminated)\s*$|\bline \d+:\s+\d+ Killed\b|\d+ Killed {2,}|is killed by signal: (?:Killed|Terminated)"
        r"|Signal 9 \(SIGKILL\)|killed by signal 9",
    ),
    _rule(
        "exception",
        "Segmentation fault|Bus error|core dumped|terminate called|panicked at|CUDA ERROR]|illegal memory access"
        "|device-side assert|uncorrectable ECC|bad magic|Bad magic|fallen off the bus|Fatal Python error"
        "|Undefined function or variable|command not found|unbound variable|syntax error near"
        "|an't open file|CUDA error|HIP error|unrecognized arguments|raining failed|raining crashed|raining aborted"
        "|atal error:|FATAL ERROR|.py: error: |backtrace (",
        r"^(?:.*[\]:-] )?[Tt]raining (?:has )?(?:failed|crashed|aborted)\b|^Fatal error:|\bFATAL ERROR\b"
        r"|Segmentation fault|Fatal Python error: (?!Aborted)|: command not found$"
        r"|\bUndefined function or variable '"
        r"|: line \d+: .*(?:: unbound variable$|syntax error near)"
        r"|an't open file '"
        r"|^\s*\S+\.py: error: |: error: unrecognized arg|^\s*Bus error|\(core dumped\)"
        r"|terminate called after|panicked at"
        r"|^\[CUDA ERROR\] at file|^backtrace \(\d+ entries\)"
        r"|CUDA error: (?:an illegal memory|device-side|uncorrectable|unspecified|misaligned|invalid)|HIP error: "
        r"|[Bb]ad magic|fallen off the bus",
    ),
    _rule(
        "error_page",
        "<!DOCTYPE|<!doctype|<html|404: Not Found|invalid load key|HeaderTooLarge|git-lfs.github.com/spec"
        "|<Code>AccessDenied",
        r"<!(?:DOCTYPE|doctype) html|<html[\s>]|404: Not Found|invalid load key, '[<v]'|HeaderTooLarge"
        r"|version https://git-lfs\.github\.com/spec|<Code>AccessDenied",
    ),
    # --- the run's own words
    _rule(
        "restart",
        "esuming|esumed |Continuing training from|oaded checkpoint|Restor",
        r"[Rr]esum(?:ing|ed)\b.*?(?:step|iteration|iter)[ =:]*(?P<step>\d+)"
        r"|[Rr]esum(?:ing|ed)\b.*?\b(?:from|checkpoint)\b"
        r"|Continuing training from (?:global step (?P<step__2>\d+)|checkpoint)"
        r"|oaded checkpoint.*?(?:at iteration (?P<step__3>\d+)|@ (?P<step__4>\d+) updates)"
        r"|Restor(?:ing states|ed all states) from",
    ),
    *END_RULES,
    _rule("checkpoint", "save-checkpoint", r"time \(ms\) \| save-checkpoint[.:\s]*(?P<milliseconds>[\d.]+)"),
    _rule(
        "checkpoint",
        "aved checkpoint|aving checkpoint|aving a full checkpoint|saved a checkpoint",
        r"[Ss]aved checkpoint \S+ \(epoch \d+ @ (?P<step>\d+) updates.*?writing took (?P<seconds>[\d.]+) s"
        r"|(?:successfully saved|saving) checkpoint (?:at|from) iteration +(?P<step__2>\d+) to"
        r"|inished saving (?:the )?checkpoint.* in (?P<seconds__2>[\d.]+) ?s"
        r"|aving a full checkpoint.*?step (?P<step__3>\d+)|saved a checkpoint at step (?P<step__4>\d+)",
    ),
    _rule("checkpoint", "aving the checkpoint", r"inished saving the checkpoint.* in (?P<seconds>[\d.]+) ?s"),
    _rule(
        "checkpoint",
        "aving checkpoint|aved checkpoint|aving model|aved model|aved Model|riting model|riting checkpoint"
        "|odel checkpoint of|checkpoint saved|Checkpoint saved|save models",
        r"odel checkpoint of size (?P<gib>[\d.]+) GiB saved to <PATH>|[Cc]heckpoint saved(?: to)?:? *<PATH>"
        # fairseq says it three times; its last line has the step and the seconds
        r"|^(?!.*[Dd]id not|.*fairseq\.trainer).*?(?:[Ss]av(?:ing|ed)|[Ww]riting|[Ss]ave) "
        r"(?:the |a |full |model |last )*"
        r"(?:checkpoint|models?|parameters|file|weights|state)\b[^/\\\n]{0,40}?(?: to|:| at|\s|=)+ ?<PATH>"
        r"|^\s*[Ss]aving model\.*\s*$",
    ),
    # without the traceback before it: other languages, torn or filtered logs
    _rule(
        "exception",
        "Error: |Exception: |ERROR: ",
        r"^(?:ERROR: (?:LoadError|MethodError|UndefVarError)|(?:\w+\.)*[A-Z]\w*(?:Error|Exception)(?:\(\w+\))?: \S)",
    ),
    # a table or a summary of jobs: how one of them ended, or how many
    _rule(
        "failed_job",
        "CRASH|FAILED|OOM|KILLED|DIVERGED|rashed|ailed|rror |ailures",
        r"^(?!\S+\.py FAILED)\W*"  # what torchrun says of a script
        r"(?:[^\s|]+[ \t|,;:=]+){1,10}?(?:CRASH(?:ED)?|FAILED|OOM|KILLED|DIVERGED)\b(?:\W*|\s*[-|(,;\d].*)$"
        r"|\|\s*(?:[Cc]rash(?:ed)?|[Ff]ailed|[Ee]rror)\s*(?:\||$)"
        r"|\b(?P<jobs__3>\d+) (?:failed|crashed)\W{1,3}\d+ (?:ok|completed|succeeded|finished)\b"
        r"|\b\d+ (?:ok|completed|succeeded|finished)\W{1,3}(?P<jobs__4>\d+) (?:failed|crashed)\b"
        r"|\b(?P<jobs>\d+)(?: ?(?:/|of|out of) ?(?:the )?(?P<of>\d+))? (?:of the )?"
        r"(?:runs|jobs|experiments|trials|trainings|configs|configurations|seeds)\b[^.\n]{0,30}\b(?:failed|crashed)\b"
        r"|^\W*(?:[Ff]ailed|[Cc]rashed|[Ff]ailures)(?: (?:runs|jobs|experiments|trials))?\W{1,4}(?P<jobs__2>\d+)"
        r"(?: ?(?:/|of) ?(?P<of__2>\d+))?\W*$",
    ),
)
NEEDLES = tuple(dict.fromkeys(needle for rule in RULES for needle in rule.needles))
_STEP_IN_PATH = re.compile(  # the last number that belongs to a word of counting
    r"(?:checkpoint|step|model|state|iter|ckpt|optim|batch)[-_]?=?0*(\d+)(?=\D|$)(?!.*(?:checkpoint|step|iter)[-_]?\d)"
)
_SCALED = {
    "milliseconds": ("seconds", 1e-3),
    "timeout_ms": ("timeout_seconds", 1e-3),
    "ran_ms": ("ran_seconds", 1e-3),
    "waited_ms": ("timeout_seconds", 1e-3),
    "minutes": ("seconds", 60.0),
    "hours": ("seconds", 3600.0),
    "gib": ("bytes", 2.0**30),
}


@dataclass(frozen=True, kw_only=True)
class Said:
    """What one line says."""

    kind: str
    text: str
    numbers: dict[str, float]


@lru_cache(maxsize=512)  # the same words stand in a log again and again
def read_line(line: str, *, code: bool = False) -> Said | None:
    """What a line says, or None. Source code, which some logs print before they start, says nothing unless `code`."""
    line = _ANSI.sub("", line)
    if _PACKAGES.match(line):
        return None
    front = _FRONT.match(line)
    bare = line[front.end() :] if front else ""
    for rule in RULES:
        if not any(needle in line for needle in rule.needles):
            continue
        # what only stands at the beginning of a line stands behind its time stamp, too
        match = rule.pattern.search(line) or (rule.pattern.search(bare) if bare else None)
        if match and (code or not _is_code(line)):
            return Said(kind=rule.kind, text=shorten(line), numbers=_numbers(rule.kind, match, line))
    return None


def shorten(line: str) -> str:
    """One line of at most `TEXT_LENGTH` characters without control characters."""
    line = line[max(line.find("slurmstepd: "), 0) :]  # its line may stand behind a torn record
    if front := _FRONT.match(line):
        line = line[front.end() :] or line
    line = " ".join("".join(c if c.isprintable() else " " for c in _ANSI.sub("", line[: 8 * TEXT_LENGTH])).split())
    return line if len(line) <= TEXT_LENGTH else line[: TEXT_LENGTH - 1] + "…"


def _is_code(line: str) -> bool:
    return _CODE.match(line) is not None or _FSTRING.search(line) is not None


def _numbers(kind: str, match: re.Match[str], line: str) -> dict[str, float]:
    numbers: dict[str, float] = {}
    for name, raw in match.groupdict().items():
        if raw is None or name.startswith("path"):
            continue
        if raw in _SIGNALS:
            numbers["signal"] = float(_SIGNALS[raw])
        elif name.startswith("duration"):
            if (seconds := duration_seconds(raw)) is not None:
                numbers["seconds"] = seconds
        elif _NUMBER.match(raw) and len(raw) <= 40:
            base = name.partition("__")[0]
            renamed, factor = _SCALED.get(base, (base, 1.0))
            numbers[renamed] = float(raw) * factor
    if kind == "out_of_memory":
        numbers.update(memory_sizes(line))
    if "real_minutes" in numbers:
        numbers["seconds"] = 60 * numbers.pop("real_minutes") + numbers.pop("real_seconds", 0.0)
    path = _path(match) if kind == "checkpoint" and "step" not in numbers else None
    if path is not None and (found := _STEP_IN_PATH.search(path)):
        numbers["step"] = float(found[1][:15])
    return numbers


def _path(match: re.Match[str]) -> str | None:
    return next((raw for name, raw in match.groupdict().items() if raw and name.startswith("path")), None)
