"""Templates and contexts for tools/compare_chat_templates.py."""
import os

USER = {"role": "user", "content": "Hi there"}
SYSTEM = {"role": "system", "content": "Be brief."}
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather <b>\"now\"</b> & later, für Zürich",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer", "default": 3}},
                   "required": ["city"]}}}
CALL = {"role": "assistant", "content": "", "tool_calls": [
    {"id": "1", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich", "t": 1.5, "x": None, "y": True}}},
    {"id": "2", "type": "function", "function": {"name": "f", "arguments": "{\"a\": 1}"}}]}
CONVERSATIONS = [
    {"messages": [USER]},
    {"messages": [USER], "add_generation_prompt": True},
    {"messages": [USER], "add_generation_prompt": True, "enable_thinking": False},
    {"messages": [USER], "add_generation_prompt": True, "enable_thinking": True},
    {"messages": [SYSTEM, USER], "add_generation_prompt": True, "bos_token": "<s>", "eos_token": "</s>"},
    {"messages": [SYSTEM, USER, {"role": "assistant", "content": "Hello!"}, {"role": "user", "content": "more"}]},
    {"messages": [USER, {"role": "assistant", "content": "<think>\nhmm\n</think>\n\nAnswer"}, {"role": "user", "content": "x"},
                  {"role": "assistant", "content": "<think>\nlast\n</think>\n\nFinal"}]},
    {"messages": [USER, {"role": "assistant", "content": "A", "reasoning_content": "because\n"}]},
    {"messages": [USER, {"role": "assistant", "content": "A", "reasoning_content": None}]},
    {"messages": [USER], "tools": [WEATHER], "add_generation_prompt": True},
    {"messages": [SYSTEM, USER, CALL, {"role": "tool", "content": "18 C"}, {"role": "tool", "content": "{\"ok\": true}"},
                  {"role": "assistant", "content": "It is 18 C."}, USER], "tools": [WEATHER, WEATHER], "add_generation_prompt": True},
    {"messages": [USER, CALL, {"role": "tool", "content": "<tool_response>x</tool_response>"}], "tools": []},
    {"messages": [{"role": "user", "content": "  \n spaces \t "}, {"role": "assistant", "content": "\n\n"}, {"role": "user", "content": ""}]},
    {"messages": [{"role": "user", "content": "你好 😀 e\u0301 \u200d \u00a0 مرحبا \u2028 <|im_end|> {{ 7*7 }} {% raw %}"}]},
    {"messages": [{"role": "user", "content": [{"type": "text", "text": "part one"}, {"type": "text", "text": "two"}]}]},
    {"messages": [{"role": "user"}]},
    {"messages": [{"content": "no role"}]},
    {"messages": [{"role": "user", "content": None}]},
    {"messages": [{"role": "user", "content": 5}]},
    {"messages": []},
    {},
    {"messages": "text"},
    {"messages": [{"role": "system", "content": "only system"}], "tools": None, "add_generation_prompt": False},
]
# Llama 3's template needs bos_token; the last conversations show the result without bos_token.
CONVERSATIONS = [{"bos_token": "<|bos|>", "eos_token": "<|eos|>", **c} for c in CONVERSATIONS[:-3]] + CONVERSATIONS[-3:]

# The variables of the micro templates.
V = {"s": "Hello World", "e": "", "u": "ßtraße ǆ İi ΑΣ 你好 😀", "n": 7, "z": 0, "neg": -7, "f": 2.5, "big": 1e16, "tiny": 1e-5, "t": True, "no": False,
     "none": None, "l": [3, 1, 2], "ls": ["b", "A", "c"], "ll": [[1, 2], [3, 4]], "d": {"b": 1, "a": 2, "items": 3},
     "ms": [{"role": "user", "n": 2, "k": {"x": 1}}, {"role": "bot", "n": 1, "k": {"x": 2}}, {"role": "user", "n": 3, "k": {}}],
     "h": "<a href='x'>\"&\"</a>", "sp": "  a  b\tc\n", "lines": "one\n\ntwo\r\nthree", "q": "it's", "qq": "it's \"x\"", "ctl": "\x00\x1f\x7f\u200b\u00ad\\",
     "num": "42", "fl": " 3.9 ", "nest": {"a": [1, {"b": None}], "c": 1.0}}

# One expression per line, each of which is a template "{{ expression }}".
with open(os.path.join(os.path.dirname(__file__), "chat_template_expressions.txt"), encoding="utf-8") as file:
    EXPRESSIONS = file.read().rstrip("\n").split("\n")

TEMPLATES = [
    "plain", "", "a\n", "a\n\n", "\n", "a\r\nb\r\n", "{{ s }}\n", "{{ s }}\n\n", "  {{ s }}  \n x",
    "{% if t %}\nyes\n{% endif %}\nend", "  {% if t %}\n  yes\n  {% endif %}\n  end", "x {% if t %}\nyes{% endif %}\n",
    "{%- if t -%}\n yes \n{%- endif -%}\n end", "a  {%- if t %} b {%- endif %}  c", "a \n {{- s -}} \n b",
    "a\n  {%+ if t %}b{% endif %}", "{% if t +%}\nb{% endif +%}\nc", "a {# c #} b", "a\n  {# c #}\nb", "a {#- c -#} b", "a\n{# multi\nline #}\nb\n",
    "{% raw %}{{ x }}{% y %}{% endraw %}", "{% raw -%}  a  {%- endraw %} b", "  {% raw %}\n a {% endraw %}\nb", "{% raw %} {% endraw",
    "{# open", "{{ open", "{% if t %}", "{% endif %}", "{% else %}", "{% if %}x{% endif %}", "{% nosuch %}", "{{ }}", "{% for %}{% endfor %}",
    "{% if no %}a{% elif n > 5 %}b{% else %}c{% endif %}", "{% if no %}a{% elif no %}b{% elif no %}c{% else %}d{% endif %}",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in l %}{{ loop.index }}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }};{% endfor %}",
    "{% for x in [] %}x{% else %}empty{% endfor %}", "{% for x in undefined_name %}x{% else %}empty{% endfor %}", "{% for x in n %}x{% endfor %}", "{% for x in none %}x{% endfor %}",
    "{% for c in 'aé😀' %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }} {% endfor %}", "{% for k, v in d.items() %}{{ k }}={{ v }} {% endfor %}",
    "{% for k, v in d|dictsort %}{{ k }}={{ v }} {% endfor %}", "{% for (a, b) in ll %}{{ a }}{{ b }} {% endfor %}", "{% for a, b in l %}{{ a }}{% endfor %}", "{% for a, b, c in ll %}{{ a }}{% endfor %}",
    "{% for x in l if x > 1 %}{{ loop.index }}:{{ x }}/{{ loop.length }} {% endfor %}", "{% for x in l if x > 9 %}x{% else %}none{% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}", "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}", "{% for x in [1,1,2] %}{{ loop.changed(x) }} {% endfor %}",
    "{% for x in l %}{% for y in l %}{{ loop.index }}{% endfor %}|{{ loop.index }} {% endfor %}", "{% for x in l %}{% if loop.index == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "{% break %}", "{{ loop }}", "{{ loop.index }}",
    "{% set x = 1 %}{% for i in l %}{% set x = x + i %}{{ x }} {% endfor %}{{ x }}", "{% if t %}{% set y = 5 %}{% endif %}{{ y }}", "{% for i in l %}{% set y = i %}{% endfor %}{{ y is defined }}",
    "{% set ns = namespace(n=0) %}{% for i in l %}{% set ns.n = ns.n + i %}{% endfor %}{{ ns.n }}", "{% set ns = namespace() %}{% set ns.a = 1 %}{% set ns.b = [ns.a] %}{{ ns.b }}{{ ns.c }}",
    "{% set ns = namespace(d) %}{{ ns.a }}", "{% set d.x = 1 %}", "{% set a, b = 1, 2 %}{{ a }}{{ b }}", "{% set a, b = l %}", "{% set x = 1, 2 %}{{ x }}", "{% set x %}a{{ n }}b{% endset %}{{ x }}{{ x|length }}",
    "{% set x | upper | replace('A', 'z') %}a{{ n }}b{% endset %}{{ x }}", "{% set x %}{% set y = 3 %}{{ y }}{% endset %}{{ x }}{{ y is defined }}", "{% set none = 1 %}", "{% set x = %}",
    "{% macro m(a, b=2, c='x') %}{{ a }}-{{ b }}-{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(1, c='z') }}{{ m(b=5, a=4) }}", "{% macro m(a) %}[{{ a }}]{% endmacro %}{{ m() }}", "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(z=2) }}", "{% macro m() %}{{ s }}{{ x }}{% endmacro %}{% set x = 4 %}{{ m() }}", "{% macro m() %}{% set s = 'in' %}{{ s }}{% endmacro %}{{ m() }}{{ s }}",
    "{% macro f(n) %}{% if n > 1 %}{{ n * f(n - 1)|int }}{% else %}1{% endif %}{% endmacro %}{{ f(5) }}", "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}B{% endmacro %}{{ a() }}", "{% macro m(x) %}{{ x|upper }}{% endmacro %}{{ m('a')|length }}{{ m('b') ~ 'c' }}",
    "{% macro m() %}<{{ caller() }}>{% endmacro %}{% call m() %}body {{ n }}{% endcall %}", "{% macro m(l) %}{% for x in l %}{{ caller(x) }}{% endfor %}{% endmacro %}{% call(x) m(l) %}[{{ x }}]{% endcall %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b')|upper %}aaa{% endfilter %}", "{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a is defined }}", "{% with %}{% set q = 1 %}{{ q }}{% endwith %}{{ q }}",
    "{% generation %}gen {{ s }}{% endgeneration %} after", "{% for m in ms %}{% generation %}{{ m.role }}\n{% endgeneration %}{% endfor %}", "{%- for m in ms -%}\n  {{ m.role }}\n{%- endfor -%}\n",
    "{% for m in ms[::-1] %}{{ m.n }}{% endfor %}", "{% for m in ms|selectattr('role', 'eq', 'user') %}{{ m.n }}{% endfor %}", "{{ ms|map(attribute='role')|unique|join('/') }}",
    "{{ '{{' }}{{ '%}' }}{{ \"}}\" }}", "{{ {'a': {'b': {}}} }}", "{{{'a': 1}.a}}", "{{ s }}{% if t %}{{ n }}{% endif %}{{ f }}", "{{-s-}}", "{%-set x=1-%}{{x}}", "{%if t%}a{%endif%}", "{{s}}\n{{s}}\n",
    "a\u00a0\n{%- if t %}b{% endif %}", "{{ s}} {{s }}", "{% if s == 'Hello World' and n == 7 and not no %}ok{% endif %}", "{% if (s) %}a{% endif %}{% if not e %}b{% endif %}", "{% if d %}d{% endif %}{% if {} %}x{% endif %}{% if [] %}y{% endif %}{% if 0.0 %}z{% endif %}",
    "{% if x is defined and x %}a{% else %}b{% endif %}", "{{ raise_exception('Roles must alternate') }}", "{% if t %}{{ raise_exception('x' ~ n) }}{% endif %}", "{% for x in range(3) %}{{ x }}{% endfor %}", "{% for i in range(200001) %}{% endfor %}",
    "{% set m = ms[0] %}{% set m = m.k %}{{ m.x }}", "{% set l2 = l + [9] %}{{ l2 }}{{ l }}", "{% set x = l %}{% set _ = x.append(1) %}", "{{ 'a' if n else 'b' }}\n{% if t %}\n\n x{% endif %}\n", "\n\n  {% if t %}  \n  a\n{% endif %}  b", "{% if t %}a\n  {% endif %}\n",
    "{{ 1 }}\n{% if t %}\n{{ 2 }}\n{% endif %}\n{{ 3 }}\n", "a{% if t %} {% endif %}b", "  {{- s }}", "{{ s -}}  \n  x", "{#- a -#}  \n {%- if t %} x{% endif -%} \n", "\t{% if t %}x{% endif %}", "x\t{% if t %}y{% endif %}", "{% if t %}x{% endif %}  {% if t %}y{% endif %}",
    "{% if t %}\n  {% if t %}\n    a\n  {% endif %}\n{% endif %}\n", "{% for x in l %}\n  - {{ x }}\n{% endfor %}\n", "{% set x = 'a\nb' %}{{ x }}", "{{ 'tab\\there' }}", "{{ s[n - 7] }}{{ s[l[1]:l[0]] }}", "{{ (l|sort)[0] }}{{ (ms|first).role }}", "{{ ms|first|string }}",
    "{{ [l, d]|tojson(indent=2) }}", "{{ d|tojson|length }}", "{{ ms|tojson|replace('user', 'u') }}", "{% set t2 = (1, 2, 'x') %}{{ t2[0] }}{{ t2|length }}{{ t2 + (3,) }}", "{{ ('a', 'b')|join }}", "{{ 'x' in ('x', 'y') }}", "{% for a in 1, 2, 3 %}{{ a }}{% endfor %}",
    "{% set c = joiner %}", "{% include 'x' %}", "{% import 'x' as y %}", "{% extends 'x' %}", "{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{{ x.a }}", "{{ 3 }}",
    "{% set x = s is string and s is not none %}{{ x }}", "{{ (s is string) is true }}", "{{ not (a is defined) }}", "{% if a is not defined %}{% set a = 1 %}{% endif %}{{ a }}", "{{ (s ~ 'x') is string }}",
    "{% for m in ms %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ m.role }}{% endfor %}", "{% for m in ms %}{{ '\\n' if not loop.first }}{{ m.role }}{% endfor %}",
    "{% macro r(v, d) %}{% if v is mapping %}{ {%- for k, x in v|dictsort %}{{ k }}:{{ r(x, d + 1) }}{% if not loop.last %},{% endif %}{% endfor -%} }{% elif v is string %}\"{{ v }}\"{% elif v is sequence %}[{% for x in v %}{{ r(x, d + 1) }};{% endfor %}]{% else %}{{ v }}{% endif %}{% endmacro %}{{ r(nest, 0) }}{{ r(ms, 0) }}",
    "{{ x }}{% set x = 1 %}{{ x }}", "{% set s = s ~ '!' %}{{ s }}", "{% for s in ls %}{{ s }}{% endfor %}{{ s }}", "{% for x in l %}{% set loop_x = loop %}{{ loop_x.index }}{% endfor %}",
]
