from typing import Any

import msgspec

from gpubench.cli import output, table
from gpubench.errors import MisuseError
from gpubench.models import MEMORY_VERSION
from gpubench.predict import memory_answer
from gpubench.predict.question import first_reasons
from gpubench.predict.request import MemoryRequest
from gpubench.sections.memory import answered, room
from gpubench.specs import usual_spec


def verb(request: MemoryRequest, shown: table.TableRequest, *, as_json: bool) -> None:
    output.say_meanings(request.gpus)
    if request.gpus and not request.workloads:
        _show_capacity(request, as_json, shown.brief)
        return
    answers = memory_answer.answers_of(request, with_fixes=as_json or bool(request.gpus))
    alone = len(request.workloads) == 1

    def document(*, brief: bool = False) -> dict[str, Any]:
        documents = [each.brief(with_cards=alone) if brief else each.flat() for each in answers]
        return documents[0] if alone else {"schema_version": MEMORY_VERSION, "workloads": documents}

    output.answer(
        as_json,
        document,
        lambda: answered(
            answers, in_short=not request.workloads, by_name=bool(request.gpus), whole=shown.table
        ),
        (lambda: document(brief=True)) if shown.brief else None,
    )
    if not any(each.cards for each in answers):
        reasons = first_reasons(refusal for each in answers for refusal in each.refused)
        raise MisuseError(
            f"no GPU has an answer: {'; '.join(reasons)}", fix="change the GPU or the precision"
        )


def _show_capacity(request: MemoryRequest, as_json: bool, in_brief: bool) -> None:
    gpus_only = MemoryRequest(gpus=request.gpus, results=request.results, asked=request.asked)
    if in_brief or msgspec.structs.astuple(request) != msgspec.structs.astuple(gpus_only):
        raise MisuseError(
            "without a workload, --gpu shows what fits on the card and takes no other option: add a workload"
        )
    found = [memory_answer.capacity_of(usual_spec(name)) for name in request.gpus]
    output.answer(
        as_json,
        lambda: {"schema_version": MEMORY_VERSION, "gpus": [each.flat() for each in found]},
        lambda: (part for each in found for part in room(each)),
    )
