import pytest

from peagle import LLM
from peagle.errors import InvalidRequestError, UnsupportedError
from peagle.model.chat_template import ChatTemplate
from peagle.train.synth.user_turn import UserTurn

# As Llama 2 has it: no token of its own ends a user's message.
BRACKETS = (
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} "
    "[/INST]{% else %} {{ m['content'] }} {{ eos_token }}{{ bos_token }}{% endif %}{% endfor %}"
)


def test_the_template_is_given_up_to_the_users_message(smollm2: LLM) -> None:
    turn = UserTurn(smollm2.chat_template, smollm2.tokenizer)
    decode = smollm2.tokenizer.decode
    begun = turn.begin([], "Why")
    assert decode(begun, skip_special_tokens=False) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging "
        "Face<|im_end|>\n<|im_start|>user\nWhy"
    )
    # A prompt that begins with these words begins with these tokens.
    assert smollm2.encode("Why is the sky blue?")[: len(begun)] == begun
    assert turn.header_tokens == len(begun) - 1
    (end,) = turn.stop_token_ids
    assert decode([end], skip_special_tokens=False) == "<|im_end|>"
    assert turn.stop == ()


def test_a_follow_up_comes_after_the_answer(smollm2: LLM) -> None:
    turn = UserTurn(smollm2.chat_template, smollm2.tokenizer)
    said = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello!"}]
    text = smollm2.tokenizer.decode(turn.begin(said, ""), skip_special_tokens=False)
    assert text.endswith(
        "<|im_start|>user\nHi.<|im_end|>\n<|im_start|>assistant\nHello!<|im_end|>\n"
        "<|im_start|>user\n"
    )


def test_a_template_without_an_end_token_ends_at_its_text(smollm2: LLM) -> None:
    tokenizer = smollm2.tokenizer
    turn = UserTurn(ChatTemplate(BRACKETS, "<|im_start|>", "<|im_end|>"), tokenizer)
    assert turn.stop_token_ids == ()
    assert turn.stop == ("[/INST]",)
    assert tokenizer.decode(turn.begin([], "Why"), skip_special_tokens=False) == (
        "<|im_start|>[INST] Why"
    )


def test_models_that_cannot_write_messages_are_refused(smollm2: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="has no chat template"):
        UserTurn(None, smollm2.tokenizer)
    hidden = ChatTemplate("{{ messages[0]['content'] | upper }}")
    with pytest.raises(UnsupportedError, match="does not show messages as they are"):
        UserTurn(hidden, smollm2.tokenizer)
