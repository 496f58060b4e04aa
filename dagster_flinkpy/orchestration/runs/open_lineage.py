"""Tells OpenLineage of the runs of a job: what they read and write.

OpenLineage's client is configured as everywhere, by variables such as ``OPENLINEAGE_URL``. Without, nothing is sent.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

from dagster import DagsterExecutionInterruptedError

from dagster_flinkpy.common.typeinfo import TypeInformation
from dagster_flinkpy.datastream.operator_specs import SinkSpec, SourceSpec
from dagster_flinkpy.datastream.program.job_graph import JobGraph
from dagster_flinkpy.errors import JobCancelledError, message_of
from dagster_flinkpy.orchestration.tables import table_columns

if TYPE_CHECKING:
    from dagster_flinkpy.orchestration.runs.job_run import JobRun

__all__ = ["dataset_name", "told_to_open_lineage"]

_PREFIX = "OPENLINEAGE_"
_NAMESPACE = "OPENLINEAGE_NAMESPACE"
_PRODUCER = "https://pypi.org/project/dagster-flinkpy"

State = Literal["START", "COMPLETE", "FAIL", "ABORT"]


@contextmanager
def told_to_open_lineage(run: JobRun) -> Iterator[None]:
    """Sends an event when the context is entered, and one when it is left: complete, failed or aborted.

    A run whose events cannot be sent goes on, with a warning.

    Args:
        run: The run of a job.
    """
    if not any(name.startswith(_PREFIX) for name in os.environ):
        yield
        return
    log = run.context.log
    if find_spec("openlineage") is None:
        log.warning("Nothing is sent to OpenLineage: run `pip install 'dagster-flinkpy[openlineage]'`")
        yield
        return

    def tell(state: State, error: BaseException | None = None) -> None:
        try:
            _send(run, state, error)
        except Exception as refused:  # lineage is not worth a run
            log.warning(f"OpenLineage was not told of {state} of job {run.assets.job.job_id}: {message_of(refused)}")

    tell("START")
    try:
        yield
    except BaseException as error:
        ended = isinstance(error.__cause__ or error, (JobCancelledError, DagsterExecutionInterruptedError))
        tell("ABORT" if ended else "FAIL", error)
        raise
    tell("COMPLETE")


def _send(run: JobRun, state: State, error: BaseException | None) -> None:
    from openlineage.client import OpenLineageClient
    from openlineage.client.event_v2 import InputDataset, Job, OutputDataset, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, schema_dataset

    def schema(kind: TypeInformation | None) -> dict[str, Any]:
        columns = [] if kind is None else table_columns(kind)
        fields = [schema_dataset.SchemaDatasetFacetFields(name=each.name, type=each.type) for each in columns]
        return {"schema": schema_dataset.SchemaDatasetFacet(fields=fields)} if fields else {}

    job, facets = run.assets.job, dict[str, Any]()
    if error is not None:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(message_of(error), "python")
    kind = job_type_job.JobTypeJobFacet(processingType="STREAMING", integration="DAGSTER", jobType="FLINKPY_JOB")
    inputs, outputs = _inputs(job.graph), _outputs(job.graph)
    event = RunEvent(
        eventTime=datetime.now(timezone.utc).isoformat(),
        producer=_PRODUCER,
        run=Run(runId=run.context.run.run_id, facets=facets),
        job=Job(namespace=os.environ.get(_NAMESPACE, "dagster"), name=job.job_id, facets={"jobType": kind}),
        eventType=RunState[state],
        inputs=[InputDataset(*dataset_name(uri), facets=schema(of)) for uri, of in inputs],
        outputs=[OutputDataset(*dataset_name(uri), facets=schema(of)) for uri, of in outputs],
    )
    client = OpenLineageClient()
    try:
        client.emit(event)
    finally:
        client.close()


def _inputs(graph: JobGraph) -> list[tuple[str, TypeInformation | None]]:
    return [
        (uri, vertex.output_type)
        for vertex in graph.vertices
        if isinstance(vertex.spec, SourceSpec)
        for uri in vertex.spec.source.uris()
    ]


def _outputs(graph: JobGraph) -> list[tuple[str, TypeInformation | None]]:
    types = {edge.target: graph.vertex(edge.source).output_type for edge in graph.edges}
    return [
        (uri, types.get(vertex.uid))
        for vertex in graph.vertices
        if isinstance(vertex.spec, SinkSpec) and (uri := vertex.spec.sink.uri()) is not None
    ]


def dataset_name(uri: str) -> tuple[str, str]:
    """Returns namespace and name of a dataset, by the naming rules of OpenLineage.

    Args:
        uri: Where it is, as `Sink.uri` says it.
    """
    parts = urlsplit(uri)
    path = parts.path.strip("/")
    match parts.scheme:
        case "file":
            return "file", f"/{path}"
        case "postgresql":
            port = "" if re.search(r":\d+$", parts.netloc) else ":5432"  # there may be several hosts
            return f"postgres://{parts.netloc}{port}", path.replace("/", ".")
        case scheme:
            return f"{scheme}://{parts.netloc}", path or "/"
