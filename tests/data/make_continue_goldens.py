#!/usr/bin/env python3
"""Writes tests/data/tokenizer/continue_final_message.jsonl: the prompts of transformers with continue_final_message.

Needs transformers 5 and jinja2:  make_continue_goldens.py FOLDER
FOLDER has the tokenizers llama3 and qwen3 (or llama3-tokenizer, qwen3-tokenizer), whose templates are not in the
repository: the golden file only names them. Its first line holds the templates, the conversations and the other
variables; every other line is a case: template, conversation, and the prompt, or null where transformers or the
template refuses it.
"""
import json
import pathlib
import sys

from transformers.utils.chat_template_utils import render_jinja_template

HERE = pathlib.Path(__file__).resolve().parent

CHATML = ("{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + "
          "'\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
SMOLLM2 = ("{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
           "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}"
           "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")
MADE = {
    "smollm2": SMOLLM2,
    "chatml": CHATML,
    "trims": CHATML.replace("message['content'] +", "(message['content'] | trim) +"),
    "strips a side": "{% for m in messages %}[{{ m.role }}]{{ m.content.rstrip() }}</s>{% endfor %}",
    "strips newlines": "{% for m in messages %}[{{ m.role }}]{{ m.content.strip('\\n') }}</s>{% endfor %}",
    "indents": "{% for m in messages %}- {{ m.content | indent(2) }}\n{% endfor %}",
    "slices": "{% for m in messages %}{{ m.content[:40] }}<end>{% endfor %}",
    "tests content": "{% for m in messages %}{% if m.content %}{{ m.role }}: {{ m.content }}\n{% else %}({{ m.role }})\n"
                     "{% endif %}{% endfor %}",
    "leaves out assistants": "{% for m in messages if m.role != 'assistant' %}{{ m.content }}<|end|>{% endfor %}",
    "capitals": "{% for m in messages %}{{ m.content | upper }}<END>{% endfor %}",
    "small letters": "{% for m in messages %}{{ m.content | lower }}<end>{% endfor %}",
    "json": "{% for m in messages %}{{ m | tojson }}\n{% endfor %}",
    "splits thoughts": "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}"
                       "{% set c = c.split('</think>')[-1].lstrip('\\n') %}{% endif %}<{{ m.role }}>{{ c }}<|end|>{% endfor %}",
    "keeps thoughts": "{% for m in messages %}{% set c = m.content %}{% if '</think>' in c %}<think>\n"
                      "{{ c.split('</think>')[0].split('<think>')[-1].strip('\\n') }}\n</think>\n\n"
                      "{{ c.split('</think>')[-1].lstrip('\\n') }}{% else %}{{ c }}{% endif %}<|end|>{% endfor %}",
    "no text": "{% for m in messages %}{{ m.role }};{% endfor %}",
    "replaces": "{% for m in messages %}{{ m.content | replace(' ', '_') }}<end>{% endfor %}",
    "words": "{% for m in messages %}{{ m.content.split() | join(' ') }}<end>{% endfor %}",
    "length": "{% for m in messages %}{{ m.content | length }}:{{ m.content }}<end>{% endfor %}",
    "raises": "{{ raise_exception('Conversation roles must alternate') }}{{ messages[0].content }}",
}

TEXTS = [
    "", " ", "\n", "\n\n", "\t", "   \n ", "\u00a0", "\u3000", "\u200b", "m", "i", "e", "<", ">", "|", "end", "im_end",
    "d|>", "|>", "<|im_end|>", "<|im_end|>\n", "<|eot_id|>", "assistant", "user", "system", "<|im_start|>assistant\n", "\\n",
    "The answer", " The answer", "The answer ", "The answer\n", "\nThe answer\n\n", "The answer\t", "The answer\u00a0",
    "1, 2, 3, ", "a\nb", "a \n b ", "A", "ABC DEF", "<think>", "<think>\n", "<think>\nfirst", "<think>\nfirst\n</think>",
    "<think>\nfirst\n</think>\n", "<think>\nfirst\n</think>\n\n", "<think>\nfirst\n</think>\n\nThen", "<think>\n\n</think>\n\n",
    "<think>\n\n</think>\n\nThen ", "first</think>then", "</think>", "</think>\n\n", "a</think>b</think>c", "<think>a</think>\nb",
    "<think>\nfirst\n</think>\n\nThen\n", "{", "}", "{{ x }}", "{% if %}", "\"", "'", "\\", "&lt;", "<b>", "\u00e4\u00f6\u00fc",
    "\u4f60\u597d", "\u4f60\u597d ", "\U0001f600", "e\u0301", "Hi", "Hi ", "x" * 39, "x" * 60, "CONTINUE", "TAG", "MESSAGE_TAG ",
    "def f():\n    return ", "| a | b |\n|---|", "```python\n", "\r\n", "a\r\n", "0", "none", "False",
]

# Messages before the last message: a system message, none, several turns.
ROLES = [
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}],
    [],
    [{"role": "user", "content": "The answer"}, {"role": "assistant", "content": "The answer"}, {"role": "user", "content": "end"}],
]
LAST = ["The answer", "The answer ", "end", "", "\n", "<think>\nfirst\n</think>\n\nThen"]


LARGE = ("llama3", "qwen3")
VARIABLES = dict(bos_token="<s>", eos_token="</s>", date_string="26 Jul 2026")


def large_template(folder, name):
    path = next(p for p in (folder / name, folder / f"{name}-tokenizer") if p.is_dir()) / "tokenizer_config.json"
    return json.loads(path.read_text())["chat_template"]


def render(source, messages):
    try:
        texts, _ = render_jinja_template([messages], chat_template=source, continue_final_message=True, **VARIABLES)
    except Exception:  # ValueError by transformers, TemplateError by templates
        return None
    return texts[0]


def cases():
    for text in TEXTS:
        yield [{"role": "user", "content": "Say what end means."}, {"role": "assistant", "content": text}]
    for before in ROLES:
        for text in LAST:
            yield before + [{"role": "assistant", "content": text}]
            yield before + [{"role": "user", "content": text}]


def main():
    folder = pathlib.Path(sys.argv[1])
    sources = MADE | {name: large_template(folder, name) for name in LARGE}
    conversations = list(cases())
    lines = [{"templates": [{"name": name, "source": MADE.get(name)} for name in sources],
              "conversations": conversations, "variables": VARIABLES}]
    for number, source in enumerate(sources.values()):
        lines += [{"template": number, "conversation": i, "prompt": render(source, messages)}
                  for i, messages in enumerate(conversations)]
    out = HERE / "tokenizer" / "continue_final_message.jsonl"
    out.write_text("".join(json.dumps(line) + "\n" for line in lines))
    refused = sum(line.get("prompt", "") is None for line in lines)
    print(len(lines) - 1, "cases,", refused, "refused,", out.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
