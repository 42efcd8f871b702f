"""`treespec generate` on tiny random models."""

import json
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.cli.conftest import Run, save_model, words_of

PROMPT = "abcabcabcabc"
FEW = ("--max-new-tokens", 24)


def plain_text(folder: Path, prompt: str, tokens: int) -> str:
    """What transformers itself gives for a prompt outside a chat."""
    model, tokenizer = (
        loader.from_pretrained(folder) for loader in (AutoModelForCausalLM, AutoTokenizer)
    )
    inputs = tokenizer(prompt, return_tensors="pt")
    output = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)
    new = output[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(new, skip_special_tokens=True))


def test_text_is_that_of_plain_decoding(run: Run, bare_model: Path) -> None:
    result = run("generate", bare_model, "-p", PROMPT, *FEW)

    assert result.exit_code == 0, result.output
    assert result.stdout == plain_text(bare_model, PROMPT, 24) + "\n"


@pytest.mark.parametrize(
    "options",
    [
        ["--drafter", "lookup"],
        ["--drafter", "recycle"],
        ["--drafter", "merged"],
        ["--drafter", "none"],
        ["--tree", "chain"],
        ["--tree", "chain", "--depth", "3"],
        ["--tree", "best-first", "--budget", "8", "--depth", "4", "--width", "2"],
        ["--budget", "5"],
        ["--tree", "[[0],[1],[0,0]]"],
        ["--attn", "eager"],
        ["--dtype", "float32", "--device", "cpu"],
    ],
    ids=" ".join,
)
def test_options_of_speed_leave_the_text_alone(
    run: Run, bare_model: Path, options: list[str]
) -> None:
    result = run("generate", bare_model, "-p", PROMPT, *FEW, *options)

    assert result.exit_code == 0, result.output
    assert result.stdout == plain_text(bare_model, PROMPT, 24) + "\n"


@pytest.mark.parametrize("options", [[], ["--drafter", "model"], ["--drafter", "merged"]])
def test_draft_model_leaves_the_text_alone(
    run: Run, model: Path, draft: Path, options: list[str]
) -> None:
    arguments = ["-p", PROMPT, "--no-chat", *FEW, "--draft-model", draft, *options]

    result = run("generate", model, *arguments)

    assert result.exit_code == 0, result.output
    assert result.stdout == plain_text(model, PROMPT, 24) + "\n"


def test_static_tree_is_read_from_a_file(run: Run, bare_model: Path, tmp_path: Path) -> None:
    paths = tmp_path / "paths.json"
    paths.write_text("[[0], [1], [0, 0]]")

    result = run("generate", bare_model, "-p", PROMPT, *FEW, "--tree", paths, "--json")

    report = json.loads(result.stdout)
    assert report["drafted"] <= 3 * report["steps"]


def test_chat_template_is_applied_where_there_is_one(run: Run, model: Path) -> None:
    spoken = run("generate", model, "-p", PROMPT, *FEW)
    continued = run("generate", model, "-p", PROMPT, *FEW, "--no-chat")

    assert spoken.stdout == plain_text(model, f"<user>{PROMPT}<bot>", 24) + "\n"
    assert spoken.stdout != continued.stdout


def test_statistics_go_to_stderr(run: Run, model: Path) -> None:
    result = run("generate", model, "-p", PROMPT, *FEW)

    assert "acceptance length" not in result.stdout
    assert "24 tokens in" in result.stderr
    assert "acceptance length" in result.stderr


def test_statistics_can_be_left_out(run: Run, model: Path) -> None:
    result = run("generate", model, "-p", PROMPT, *FEW, "--no-stats")

    assert "tokens" not in result.stderr


def test_json_is_one_object_with_text_and_counts(run: Run, bare_model: Path) -> None:
    result = run("generate", bare_model, "-p", PROMPT, *FEW, "--json")

    report = json.loads(result.stdout)
    assert report["text"] == plain_text(bare_model, PROMPT, 24)
    assert report["prompt"] == PROMPT
    assert report["emitted"] == len(report["token_ids"]) == 24
    assert report["finish_reason"] == "length"
    assert report["acceptance_length"] == pytest.approx(23 / report["steps"])
    assert report["seed"] is None


def test_same_seed_gives_the_same_sample_for_every_drafter(run: Run, model: Path) -> None:
    sampling = ["-p", PROMPT, *FEW, "--temperature", 1.5, "--seed", 7, "--json"]

    reports = [
        json.loads(run("generate", model, *sampling, "--drafter", drafter).stdout)
        for drafter in ("merged", "none")
    ]

    assert reports[0]["token_ids"] == reports[1]["token_ids"]
    assert reports[0]["seed"] == 7


def test_seed_that_was_drawn_is_told_and_repeats_the_sample(run: Run, model: Path) -> None:
    sampling = ["-p", PROMPT, *FEW, "--temperature", 1.5, "--json"]

    first = json.loads(run("generate", model, *sampling).stdout)
    again = json.loads(run("generate", model, *sampling, "--seed", first["seed"]).stdout)

    assert first["token_ids"] == again["token_ids"]


def test_prompt_comes_from_a_file_without_its_last_line_break(
    run: Run, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text(f"{PROMPT}\n")

    result = run("generate", model, "--prompt-file", tmp_path / "prompt.txt", *FEW)

    assert result.stdout == run("generate", model, "-p", PROMPT, *FEW).stdout


def test_prompt_comes_from_stdin(run: Run, model: Path) -> None:
    result = run("generate", model, *FEW, stdin=f"{PROMPT}\n")

    assert result.stdout == run("generate", model, "-p", PROMPT, *FEW).stdout


def test_text_streams_in_pieces_that_join_to_the_whole(run: Run, bare_model: Path) -> None:
    streamed = run("generate", bare_model, "-p", PROMPT, "--max-new-tokens", 60)
    whole = run("generate", bare_model, "-p", PROMPT, "--max-new-tokens", 60, "--json")

    assert streamed.stdout == json.loads(whole.stdout)["text"] + "\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-p", ""], "the prompt is empty"),
        (["-p", "a", "--prompt-file", __file__], "not both"),
        (["--prompt-file", "/no/such/file"], "does not exist"),
        (["-p", "a", "--drafter", "model"], "needs a draft model; give one with --draft-model"),
        (["-p", "a", "--drafter", "magic"], "'magic' is not one of"),
        (["-p", "a", "--drafter", "lookup", "--draft-model", "x"], "takes no draft model"),
        (["-p", "a", "--draft-model", "./nowhere"], "'./nowhere' is not a folder"),
        (["-p", "a", "--tree", "bush"], "'bush' is no shape and no readable file"),
        (["-p", "a", "--tree", "[[0],[1"], "the paths are not JSON"),
        (["-p", "a", "--tree", "[0, 1]"], "not lists of child ranks"),
        (["-p", "a", "--tree", "[[0,0]]"], "has no parent: add [0]"),
        (["-p", "a", "--tree", "[[0]]", "--budget", "3"], "leave --budget out"),
        (["-p", "a", "--tree", "chain", "--width", "2"], "a chain has one child a node"),
        (["-p", "a", "--budget", "0"], "Invalid value for '--budget'"),
        (["-p", "a", "--max-new-tokens", "0"], "Invalid value for '--max-new-tokens'"),
        (["-p", "a", "--temperature", "-1"], "Invalid value for '--temperature'"),
        (["-p", "a", "--temperature", "inf"], "inf is no temperature"),
        (["-p", "a", "--device", "warp"], "'warp' cannot be used"),
        (["-p", "a", "--dtype", "int3"], "'int3' is not one of"),
        (["-p", "a" * 300, "--no-chat"], "256 positions; shorten the prompt"),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_bad_option_is_told_without_a_traceback(
    run: Run, model: Path, options: list[str], message: str
) -> None:
    result = run("generate", model, *options)

    assert result.exit_code == 2
    assert message in words_of(result.stderr)
    assert result.stdout == ""
    assert "Traceback" not in result.output


def test_chat_without_a_template_is_refused(run: Run, bare_model: Path) -> None:
    result = run("generate", bare_model, "-p", "a", "--chat")

    assert result.exit_code == 2
    assert "has no chat template; use --no-chat" in words_of(result.stderr)


def test_folder_that_is_missing_is_told_from_a_hub_id(run: Run, tmp_path: Path) -> None:
    result = run("generate", tmp_path / "nowhere", "-p", "a")

    assert result.exit_code == 2
    assert "is not a folder; give one that save_pretrained() wrote" in words_of(result.stderr)


def test_folder_without_a_model_is_named(run: Run, tmp_path: Path) -> None:
    result = run("generate", tmp_path, "-p", "a")

    assert result.exit_code == 2
    assert "has no config.json" in words_of(result.stderr)


def test_folder_without_a_tokenizer_is_named(run: Run, model: Path, tmp_path: Path) -> None:
    AutoModelForCausalLM.from_pretrained(model).save_pretrained(tmp_path)

    result = run("generate", tmp_path, "-p", "a")

    assert result.exit_code == 2
    assert "no tokenizer could be loaded" in words_of(result.stderr)


def test_prompt_that_is_not_text_is_told(run: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "prompt.bin").write_bytes(b"ab\xff")

    result = run("generate", model, "--prompt-file", tmp_path / "prompt.bin")

    assert result.exit_code == 2
    assert "not UTF-8 text (invalid start byte at byte 2)" in words_of(result.stderr)


def test_draft_model_with_another_tokenizer_is_refused(
    run: Run, model: Path, tmp_path: Path
) -> None:
    other = save_model(tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))

    result = run("generate", model, "-p", "a", "--draft-model", other)

    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")


def test_hub_id_that_cannot_be_fetched_is_quoted(run: Run) -> None:
    result = run("generate", "nobody/no-such-model", "-p", "a")

    assert result.exit_code == 2
    assert "from 'nobody/no-such-model'" in words_of(result.stderr)


def test_tokenizer_of_these_tests_keeps_text_as_it_is(model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(model)

    assert tokenizer.decode(tokenizer.encode("an Äpfel\n<user>")) == "an Äpfel\n<user>"
    assert tokenizer.encode("<user>") == [1]
