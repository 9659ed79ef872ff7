"""Reads tables of published RL runs, whose columns hold free words, and predicts each row."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path

from advisor.architecture import Layout, Model
from advisor.errors import AdvisorError
from advisor.hardware.catalog import GpuSpec, read_gpus, require_gpu
from advisor.planning.models import known_names, mixture_rows, require_architecture
from advisor.planning.rl import RlWay, best_updates
from advisor.prediction.generation import Answers
from advisor.prediction.rl import RlRun, RlSoftware, RlWork, predict_rl, prediction_of, require_rl_software, rl_software
from advisor.records import Prediction
from advisor.store.store import Store
from advisor.workflows.goal import RL_SOFTWARE, find_any_model
from advisor.workflows.plan_finetune import RANK
from advisor.workflows.rl import PROMPT_LEN, UNSURE, RlRequest, usual_length, usual_updates

_OF_WORK = ("response_len", "prompts_per_step", "group_size")  # what the work of a step depends on
_HYBRIDS, _ATTENDING = r"qwen3\.[56]|qwen3-next", 0.25  # one layer in four attends (full_attention_interval)
_FAR = 0.35  # log ratio of parameters beyond which no known model stands in for an unknown one


@dataclass(frozen=True, kw_only=True)
class RlPredicted:
    """One configuration with its step, and what was assumed."""

    run: RlRun
    way: RlWay
    assumed: tuple[str, ...]


def rl_rows(path: Path, store: Store) -> Iterator[RlPredicted | AdvisorError]:
    """Yield the prediction of each row of a table of RL runs, or why there is none.

    The columns are those of `benchmarks/rl_runs.csv`: model, gpu, n_gpus, prompts_per_step, group_size and so on.
    """
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            cells = {name: cell.strip() for name, cell in row.items() if name and cell and cell.strip()}
            try:
                yield predicted_row(cells, store)
            except AdvisorError as error:
                yield error


def predicted_row(row: Mapping[str, str], store: Store) -> RlPredicted:
    """Return the prediction of one row of such a table. Raises AdvisorError if too little is stated or none fits."""
    assumed: list[str] = []

    def stated(name: str) -> float | None:
        try:
            return float(row[name]) if name in row else None
        except ValueError:
            raise AdvisorError(f"{name}: {row[name]} is no number", "a number of the run", exit_code=2) from None

    def number(name: str, default: float | None) -> float:
        found = stated(name)
        if found is not None:
            return found
        if default is None:
            raise AdvisorError(f"{name} is not stated", "state it in its column", exit_code=2)
        assumed.append(f"{name} {default:g}")
        return default

    sizes = model_of(row.get("model", ""), stated("params_b"), stated("active_params_b"), assumed)
    if "gpu" not in row:
        raise AdvisorError("no gpu is stated", "name it: h100", exit_code=2)
    named = read_gpus(row["gpu"].partition("/")[0])
    spec = require_gpu(named.key)
    software = software_in(row.get("framework", ""), assumed)
    gpus = int(number("n_gpus", None))
    split = "n_train_gpus" in row or "n_rollout_gpus" in row or row.get("mode", "").startswith(("split", "async"))
    train = int(stated("n_train_gpus") or 0) or (gpus // 2 if split and gpus > 1 else gpus)
    engines = int(stated("n_rollout_gpus") or 0) or (gpus - train if split and gpus > train else gpus)
    mode = row.get("mode", "colocated")
    stale = re.search(r"async-([\d.]+)", mode)
    staleness = float(stale[1]) if stale else 2.0 if "async" in mode else 0.0
    degrees = {name: int(value) for name, value in re.findall(r"\b(TP|PP|CP|EP)(\d+)", row.get("layout_train", ""))}
    prompt = number("prompt_len_mean", PROMPT_LEN)
    cap = stated("response_len_max")
    if cap is None and "response_len_mean" not in row:
        cap = number("response_len_max", software.response_max)
    mean = number("response_len_mean", None if cap is None else usual_length(cap, row.get("model", "")))
    limit = max(mean, (cap or 4 * mean) - (prompt if software.name == "nemo-rl" else 0.0))
    answers = Answers(
        prompts=int(number("prompts_per_step", software.prompts)), group=int(number("group_size", software.group)),
        prompt_len=prompt, response_len=mean, response_max=round(limit),
    )  # fmt: skip
    eight_bits = [row.get(name, "") in ("fp8", "mxfp8") for name in ("precision_train", "precision_rollout")]
    eager = software.graphs_since is None or row.get("date", "9") < software.graphs_since
    adapters = row.get("method") == "lora"
    algorithm = next((one for one in ("dapo", "ppo") if one in row.get("algorithm", "").lower()), "grpo")
    request = RlRequest(
        typed=sizes.name, model=sizes, answers=answers, software=software, updates=usual_updates(software),
        rank=RANK if adapters else None, adapters=adapters, precision="fp8" if eight_bits[0] else "bf16",
        algorithm=algorithm, reference=algorithm != "dapo", eight_bits=any(eight_bits),
        unsure=UNSURE if any(one.startswith(_OF_WORK) for one in assumed) else 0.0,
    )  # fmt: skip
    work = {one.name: getattr(request, one.name) for one in fields(RlWork)}
    update = _update_of_row(request, spec, train, degrees, store)
    if update is None:
        raise AdvisorError(f"the speed of {named.key} for {sizes.name} is unknown", "name another GPU", exit_code=2)
    of_engine = re.findall(r"TP(\d+)", row.get("layout_rollout", ""))
    usual = min(software.tensor, engines)
    tensors = [int(of_engine[0])] if of_engine else [2**n for n in range(8) if engines % 2**n == 0 and 2**n >= usual]
    for tensor in tensors:
        run = RlRun(
            **work, update=update, gpu=spec, train_gpus=train, engine_gpus=engines, tensor=min(tensor, engines),
            colocated=not split, staleness=staleness,
            eager=eager or row.get("rollout_engine", "").lower().startswith("hf"),
        )  # fmt: skip
        step = predict_rl(run)
        if step is not None and step.generation.at_once >= min(8.0, answers.count * tensor / engines):
            return RlPredicted(
                run=run, way=RlWay(run=run, step=step, prediction=prediction_of(run, step)), assumed=tuple(assumed)
            )
    message = f"engines have no room for {sizes.name} on {engines} x {named.key}"
    raise AdvisorError(message, "more GPUs, or a larger share of their memory", exit_code=3)


def _update_of_row(
    request: RlRequest, spec: GpuSpec, gpus: int, degrees: Mapping[str, int], store: Store
) -> Prediction | None:
    """Return an optimizer step in the layout that a row states, or else in the best."""
    pieces = [degrees.get(name, 1) for name in ("TP", "PP", "CP")]
    cut = pieces[0] * pieces[1] * pieces[2]
    if not degrees or gpus % cut or request.rank is not None:
        return replace(request, placement="colocated").updates_on([(spec.key, gpus)], store).get((spec.key, gpus))
    layout = Layout(
        tensor=pieces[0], sequence=pieces[0] > 1, pipeline=pieces[1], context=pieces[2], expert=degrees.get("EP", 1),
        data=gpus // cut, sharding="optimizer",
    )  # fmt: skip
    return best_updates(
        request.model, [(spec, gpus)], request.answers, request.software, updates=request.updates,
        precision=request.precision, layout=layout,
    ).get((spec.key, gpus))  # fmt: skip


def software_in(text: str, assumed: list[str]) -> RlSoftware:
    """Return the program that free words name, else the usual one."""
    letters = re.sub(r"[^a-z]", "", text.lower())
    for name in sorted(rl_software(), key=len, reverse=True):
        if name.replace("-", "") in letters:
            return require_rl_software(name)
    assumed.append(f"software {RL_SOFTWARE}")
    return require_rl_software(RL_SOFTWARE)


def model_of(name: str, params_b: float | None, active_b: float | None, assumed: list[str]) -> Model:
    """Return the sizes of a named model, or those of the known model of nearest size.

    Raises AdvisorError (exit 2) if neither name nor size is known.
    """
    plain = re.sub(r"-(instruct|base|math|chat|it|vl)\b", "", name.split(" ")[0].lower())
    plain = plain.replace("deepseek-r1-distill-qwen-", "qwen2.5-").replace("deepseek-r1-distill-llama-", "llama-3.1-")
    for one in (name, name.split(" ")[0], plain, plain.replace("qwen2-", "qwen2.5-")):
        try:
            found = find_any_model(one).model
        except AdvisorError:
            continue
        if params_b is None or abs(found.parameters / (params_b * 1e9) - 1) < 0.5:
            if "-vl" in name.lower() and "-vl" not in one.lower():
                assumed.append(f"{found.name} for {name}, without images and their encoder")
            return found
    if params_b is None:
        raise AdvisorError(f"--model {name or '?'}: unknown", "state its size, or a config.json", exit_code=2)
    wanted, active = params_b * 1e9, (active_b or params_b) * 1e9
    names = list(mixture_rows()) if active < 0.8 * wanted else known_names()
    nearest, far = None, _FAR
    for one in names:
        try:
            model = require_architecture(one).model
        except AdvisorError:
            continue
        off = max(wanted / model.parameters, model.parameters / wanted)
        if off - 1 < far and model.gated:
            nearest, far = model, off - 1
    if nearest is None:
        raise AdvisorError(f"--model {name}: unknown, and no known model has its size", "a config.json", exit_code=2)
    assumed.append(f"{nearest.name}, which is nearest in size, for {name or 'the model'}: its config.json says more")
    return replace(nearest, attending=_ATTENDING if re.search(_HYBRIDS, plain) else nearest.attending)
