"""Tasks of the evaluation harness, and where their data sets come from. Imported in the work process only."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import datasets
from lm_eval.tasks import TaskManager

from primus_core.errors import EnvironmentFault, UserError
from primus_eval.orders import TasksOrder, answer

_LOADERS = frozenset({"json", "csv", "text", "parquet", "arrow", "pandas", "xml"})


class Tasks:
    """Names of tasks, groups and tags, the harness's own and those of local files."""

    def __init__(self, include: Sequence[str]) -> None:
        logging.getLogger("lm_eval").setLevel(logging.ERROR)
        self.folders = [Path(each).parent if Path(each).is_file() else Path(each) for each in include]
        for folder in self.folders:
            if not folder.is_dir():
                raise UserError(f"--include {folder}: no such folder")
        self.manager = TaskManager(include_path=[str(folder) for folder in self.folders] or None)

    def load(self, names: Sequence[str], load_dataset: Callable[..., Any]) -> list[Any]:
        """Tasks and groups, with their data. Raises ``UserError`` for a name that there is not."""
        for name in names:
            if name not in self.manager.all_tasks:
                close = get_close_matches(name, self.manager.all_tasks, 3)
                hint = f"; did you mean {' or '.join(close)}?" if close else ""
                raise UserError(f"--tasks {name}: no such task{hint}")
        with _replaced(load_dataset):
            loaded = self.manager.load(list(names))
        groups = [group for name, group in loaded.get("groups", {}).items() if name in names]
        grouped = {task.task_name for group in groups for task in group.get_all_tasks()}
        return [*groups, *(task for name, task in loaded["tasks"].items() if name not in grouped)]


def names_of(tasks: Sequence[str], include: Sequence[str]) -> tuple[list[str], list[str]]:
    """Names and folders of tasks, where a file stands for the task that it describes."""
    import yaml

    names, folders = [], list(include)
    for each in tasks:
        if not each.endswith((".yaml", ".yml")):
            names.append(each)
            continue
        try:
            content = yaml.load(Path(each).read_text(encoding="utf-8"), Loader=_Plain)
            names.append(content.get("task") or content["group"])
        except (OSError, yaml.YAMLError, KeyError, AttributeError, TypeError) as error:
            raise UserError(f"--tasks {each}: is no description of a task: {error}") from error
        folders.append(str(Path(each).parent))
    return names, list(dict.fromkeys(folders))


def _plain_loader() -> Any:
    import yaml

    class Plain(yaml.SafeLoader):
        """Reads the name of a task, whatever functions the file refers to."""

    Plain.add_constructor("!function", lambda loader, node: None)
    return Plain


_Plain = _plain_loader()


# --- data sets ----------------------------------------------------------------------------------------------------


def from_folder(data: str | None, folders: Sequence[Path]) -> Callable[..., Any]:
    """``load_dataset`` that takes a data set of the hub from where ``primus data tasks`` laid it down."""
    original = datasets.load_dataset

    def load(path: str, name: str | None = None, **given: Any) -> Any:
        if path in _LOADERS:
            if files := given.get("data_files"):
                given["data_files"] = _found(files, folders)
        elif data and (Path(data) / path).is_dir():
            path = str(Path(data) / path)
        elif not Path(path).exists():
            _require(path, data)
        try:
            return original(path=path, name=name, **given)
        except (OSError, ValueError, KeyError) as error:
            raise UserError(f"data set {path}: {_line(error)}; {_remedy(data)}") from error

    return load


def _require(path: str, data: str | None) -> None:
    """Raise ``UserError`` for a data set that is not there, when only what is there may be used."""
    if data is not None or datasets.config.HF_HUB_OFFLINE:
        where = f"not in {data}" if data else "not on this machine"
        raise UserError(f"the data set {path} is {where}; {_remedy(data)}")


def _remedy(data: str | None) -> str:
    folder = data or "DIR"
    return (
        f"'primus data tasks TASK --output {folder}' lays it down where there is network, "
        f"and 'primus eval --data {folder}' takes it from there"
    )


def _found(files: Any, folders: Sequence[Path]) -> Any:
    """Relative names of files are looked for from here, then beside the task's own file."""
    if isinstance(files, dict):
        return {key: _found(value, folders) for key, value in files.items()}
    if isinstance(files, list):
        return [_found(value, folders) for value in files]
    beside = (folder / files for folder in folders)
    return files if Path(files).exists() else str(next((file for file in beside if file.exists()), files))


@contextmanager
def _replaced(load_dataset: Callable[..., Any]) -> Iterator[None]:
    original = datasets.load_dataset
    datasets.load_dataset = load_dataset
    try:
        yield
    finally:
        datasets.load_dataset = original


def lay_down(text: str) -> str:
    """Download the data sets of tasks into ``output/<owner>/<name>``, each as it lies on the hub."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RepositoryNotFoundError

    order = TasksOrder.read(text)
    original, taken = datasets.load_dataset, dict[str, str]()

    def load(path: str, name: str | None = None, **given: Any) -> Any:
        if path in _LOADERS or Path(path).exists():
            return original(path=path, name=name, **given)
        if path not in taken:
            target = Path(order.output) / path
            try:
                snapshot_download(path, repo_type="dataset", local_dir=target)
            except GatedRepoError as error:
                raise EnvironmentFault(f"{path} asks for an account: set HF_TOKEN; {_line(error)}") from error
            except RepositoryNotFoundError as error:
                raise UserError(f"there is no data set {path}: {_line(error)}") from error
            except (HfHubHTTPError, OSError) as error:
                raise EnvironmentFault(f"{path} cannot be downloaded: {_line(error)}") from error
            taken[path] = str(target)
        return original(path=taken[path], name=name, **given)

    names, folders = names_of(order.tasks, order.include)
    tasks = Tasks(folders).load(names, load)
    return answer({"tasks": len(tasks), "sets": taken})


def _line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
