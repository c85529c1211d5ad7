"""Records of submitted jobs, possibly changed by others."""

import json
import os

import pytest
from refusals import expect_refusal

from hpcfl.cluster.submission_folder import SubmittedJobs


@pytest.fixture
def jobs(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "submitted.json").write_text(json.dumps({"a": "1"}))
    return tmp_path / "jobs"


def test_the_last_job_of_a_cell_and_why_it_failed(jobs):
    record = {"followers": {"1": "2", "2": "3"}, "failure": "why", "rounds": 1}
    (jobs / "a.requeues").write_text(json.dumps(record))
    submissions = SubmittedJobs(jobs.parent)
    assert submissions.jobs == {"a": "3"}
    assert submissions.read_failure("a") == "why"
    assert submissions.read_failure("b") is None


@pytest.mark.timeout(10)
def test_jobs_that_follow_each_other_in_a_circle_end(jobs):
    (jobs / "a.requeues").write_text(json.dumps({"followers": {"1": "2", "2": "1"}}))
    assert SubmittedJobs(jobs.parent).jobs == {"a": "1"}


@pytest.mark.parametrize(
    "text",
    [
        "[1]",
        "{",
        "[" * 100_000,
        '{"a": 1}',
        '{"../../etc/x": "1"}',
        '{"..": "1"}',
        '{"": "1"}',
    ],
)
def test_a_damaged_list_of_jobs_is_refused(jobs, text):
    (jobs / "submitted.json").write_text(text)
    with expect_refusal(r"submitted\.json: "):
        SubmittedJobs(jobs.parent)


@pytest.mark.parametrize(
    "text", ["[1]", '{"followers": [1]}', '{"followers": {"1": 2}}', '{"failure": 3}']
)
def test_a_damaged_record_of_requeues_is_refused(jobs, text):
    (jobs / "a.requeues").write_text(text)
    with expect_refusal(r"a\.requeues: "):
        SubmittedJobs(jobs.parent)


@pytest.mark.timeout(10)
@pytest.mark.parametrize(
    "plant", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")]
)
def test_a_list_of_jobs_that_is_a_pipe_or_a_link_is_refused(jobs, plant):
    (jobs / "submitted.json").unlink()
    plant(jobs / "submitted.json")
    with expect_refusal(r"submitted\.json: "):
        SubmittedJobs(jobs.parent)
