"""Templates and contexts for tools/compare_chat_templates.py."""

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
# Llama 3's template needs bos_token; the last conversations show what its absence does.
CONVERSATIONS = [{"bos_token": "<|bos|>", "eos_token": "<|eos|>", **c} for c in CONVERSATIONS[:-3]] + CONVERSATIONS[-3:]

# Values that the micro templates see.
V = {"s": "Hello World", "e": "", "u": "ßtraße ǆ İi ΑΣ 你好 😀", "n": 7, "z": 0, "neg": -7, "f": 2.5, "big": 1e16, "tiny": 1e-5, "t": True, "no": False,
     "none": None, "l": [3, 1, 2], "ls": ["b", "A", "c"], "ll": [[1, 2], [3, 4]], "d": {"b": 1, "a": 2, "items": 3},
     "ms": [{"role": "user", "n": 2, "k": {"x": 1}}, {"role": "bot", "n": 1, "k": {"x": 2}}, {"role": "user", "n": 3, "k": {}}],
     "h": "<a href='x'>\"&\"</a>", "sp": "  a  b\tc\n", "lines": "one\n\ntwo\r\nthree", "q": "it's", "qq": "it's \"x\"", "ctl": "\x00\x1f\x7f\u200b\u00ad\\",
     "num": "42", "fl": " 3.9 ", "nest": {"a": [1, {"b": None}], "c": 1.0}}

EXPRESSIONS = """
s
none
t
f
big
tiny
1e22
1.0
0.1+0.2
100000000000000000.0
123456789.123
l
ls
d
nest
[q, qq, ctl, u]
(1,)
()
(1, 'a')
1, 2
{}
{'a': 1, 2: 'b', none: true}
undefined_name
[undefined_name]
s.missing
d.missing
d['missing']
l[10]
l[-1]
l[0]
s[0]
s[-1]
u[0]
u[-1]
s[50]
s[2:5]
s[:-3]
s[::-1]
u[2:6]
u[::-2]
l[1:]
l[::-1]
l[:100]
l[-2:]
l[5:1]
(1,2,3)[1:]
d.a
d['items']
d.keys()|list
d.values()|list
d.items()|list
d|items|list
d.get('a')
d.get('zz')
d.get('zz', 5)
ms[0].role
ms[0]['k'].x
ms[0].k.y
ms.0.role
nest.a[1].b
n + 1
n - 10
n * 2
n / 2
n // 2
neg // 2
n % 4
neg % 4
neg % -4
7.5 % -2
neg // 2.0
7.5 // 2
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
-n
+n
--n
-f|abs
n / 0
n % 0
t + t
s + s
s + n
s ~ n
n ~ none ~ t ~ f ~ l
s * 2
2 * s
s * -1
l * 2
l + ls
l + s
'%s-%d-%5.2f|%-5s|%05d|%x|%%' % ('a', 3, 2.5, 'b', 42, 255)
'%s' % l
'%r' % s
'%d' % 'x'
'%s %s' % ('a',)
'%(a)s %(b)03d' % d
1 < 2
1 < 2 < 3
1 < 3 < 2
1 == 1.0
t == 1
'1' == 1
none == none
undefined_name == undefined_name
s < 'a'
l == [3,1,2]
l == (3,1,2)
l < [3,2]
1 < 'a'
none < 1
undefined_name < 1
s != s
not t
not not s
not none and t
s and n
e or n
e or none or 'x'
z and undefined_name.x
'Wor' in s
'wor' in s
3 in l
5 in l
'a' in d
'x' not in d
not 'x' in d
1 in undefined_name
1 in s
1 in 5
'a' if t
'a' if no
'a' if no else 'b'
'a' if no else 'b' if no else 'c'
('a' if t else 'b') ~ 'c'
undefined_name is defined
s is defined
d.x is defined
d.x is undefined
none is none
none is not none
s is string
n is string
d is mapping
l is mapping
l is iterable
n is iterable
s is iterable
undefined_name is iterable
n is number
f is number
t is number
n is integer
t is integer
f is float
t is boolean
n is boolean
t is true
1 is true
no is false
l is sequence
d is sequence
s is sequence
n is sequence
n is odd
n is even
n is divisibleby 7
n is divisibleby(2)
n is eq 7
n is equalto(7)
n is == 7
n is ne 3
n is lt 8
n is gt 8
n is ge 7
n is le 7
n is in [7, 8]
3 is in l
s is sameas s
t is sameas true
'abc' is lower
'ABC' is upper
'upper' is filter
'odd' is test
n is not odd and t
l is callable
range is callable
s is nosuchtest
s|nosuchfilter
s|upper
s|lower
u|upper
u|lower
u|capitalize
u|title
'hello-world (foo) [bar] <baz>'|title
s|capitalize
'hELLO'|capitalize
sp|trim
'xxaxx'|trim('x')
s|replace('l', 'L')
s|replace('l', 'L', 1)
s|replace('', '-')
n|replace(7, 8)
s|length
u|length
l|length
d|length
l|count
n|length
none|length
undefined_name|length
undefined_name|default('x')
undefined_name|d('x')
none|default('x')
none|default('x', true)
e|default('x', true)
e|default('x', boolean=true)
d.q|default(l)
l|first
l|last
[]|first
s|first
s|last
l|join
l|join(', ')
ls|join(n)
ms|join(',', attribute='role')
s|join('-')
ls|map('upper')|list
ms|map(attribute='role')|list
ms|map(attribute='k.x')|list
ms|map(attribute='zz', default='?')|list
l|map('string')|join('+')
ls|map('replace', 'b', 'B')|list
l|select|list
[0,1,2]|select|list
l|select('odd')|list
l|select('gt', 1)|list
l|reject('odd')|list
ms|selectattr('role', 'equalto', 'user')|list
ms|selectattr('k.x')|list
ms|selectattr('zz', 'defined')|list
ms|rejectattr('role', 'eq', 'user')|list
ms|rejectattr('k.x')|map(attribute='n')|list
none|select|list
none|selectattr('x')|list
none|map('upper')|list
l|sort
l|sort(reverse=true)
ls|sort
ls|sort(case_sensitive=true)
ms|sort(attribute='n')|map(attribute='n')|list
[1,'a']|sort
['b','a','B','A']|unique|list
[1,1.0,true,2]|unique|list
l|max
l|min
[]|max
ls|max
ms|max(attribute='n')
l|sum
ms|sum(attribute='n')
l|sum(start=10)
[[1],[2]]|sum(start=[])
l|reverse|list
s|reverse
u|reverse
s|list
d|list
l|list
[1,2,3,4,5]|batch(2)|list
[1,2,3]|batch(2, 'x')|list
d|dictsort
d|dictsort(by='value')
d|dictsort(reverse=true)
num|int
fl|int
'x'|int
'x'|int(5)
'0x1f'|int(base=16)
'1_000'|int
none|int
undefined_name|int
f|int
-2.7|int
t|int
num|float
'x'|float
'x'|float(1.5)
n|float
'inf'|float
f|round
3.5|round
2.675|round(2)
1234.5|round(-2)
2.1|round(0, 'ceil')
2.9|round(0, 'floor')
n|round
neg|abs
-2.5|abs
n|string
none|string
l|string
h|e
h|escape
h|safe
lines|indent
lines|indent(2)
lines|indent(2, true)
lines|indent(2, first=true, blank=true)
lines|indent('> ')
'%s|%s'|format('a', 1)
'%(x)s'|format(x=5)
'ab'|center(7)
'two words here'|wordcount
s|tojson
u|tojson
h|tojson
ctl|tojson
lines|tojson
n|tojson
f|tojson
big|tojson
none|tojson
t|tojson
l|tojson
d|tojson
nest|tojson
nest|tojson(indent=2)
[]|tojson(indent=2)
{}|tojson(indent=4)
nest|tojson(indent=0)
d|tojson(sort_keys=true)
u|tojson(ensure_ascii=true)
u|tojson(true)
nest|tojson(separators=(',', ':'))
{1: 2, none: 3, true: 4, 1.5: 5}|tojson
undefined_name|tojson
'inf'|float|tojson
range|tojson
s.upper()
s.lower()
s.title()
"they're bill's FRIENDS x1y"|title
"they're bill's FRIENDS x1y".title()
u.upper()
u.lower()
u.casefold()
s.swapcase()
s.capitalize()
s.split()
s.split('o')
s.split('o', 1)
s.rsplit('o', 1)
sp.split()
sp.split(none, 1)
sp.rsplit(none, 1)
sp.split(' ')
s.split('')
e.split()
e.split(',')
lines.splitlines()
lines.splitlines(true)
sp.strip()
sp.lstrip()
sp.rstrip()
'xyabcyx'.strip('xy')
'\\n\\nab\\n'.lstrip('\\n')
s.startswith('Hell')
s.startswith(('x', 'H'))
s.endswith('ld')
s.startswith('World', 6)
s.endswith(['a'])
s.find('o')
s.find('o', 5)
s.find('zz')
s.rfind('o')
u.find('你')
s.index('W')
s.index('zz')
s.count('l')
s.count('')
s.replace('World', 'x')
s.replace('l', '', 2)
s.replace(1, 2)
', '.join(ls)
', '.join(l)
'-'.join('abc')
'a{}b{}'.format(1, 'x')
'{0}{1}{0}'.format('a', 'b')
'{x:>5}|{y:<4}|{z:^5}|{w:05d}|{v:.2f}|{c:,}'.format(x=1, y='a', z='b', w=42, v=2.345, c=1234567)
'{{}}{}'.format(1)
'{!r}'.format('a')
'abc'.removeprefix('a')
'abc'.removesuffix('c')
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('x')
'ab'.ljust(5) ~ '|'
'ab'.rjust(5, '*')
'ab'.center(5, '*')
'abc'.center(6, '*')
'-42'.zfill(6)
'123'.isdigit()
'²'.isdigit()
'½'.isnumeric()
'½'.isdecimal()
''.isdigit()
'abc'.isalpha()
'ab1'.isalnum()
' \\t'.isspace()
'ABC'.isupper()
'abC'.islower()
'é'.isascii()
l.index(1)
l.index(9)
l.count(1)
l.append(4)
d.update({})
d.pop('a')
s.nosuch()
s.nosuch
undefined_name.x
undefined_name()
undefined_name['x']
undefined_name + 1
1 + undefined_name
-undefined_name
undefined_name ~ 'x'
'a' + undefined_name
n()
n.x.y
none.x
none + 1
none['x']
d()
s.__class__
range(5)|list
range(2, 8, 3)|list
range(5, 0, -2)|list
range(0)|list
range(1, 2, 0)
dict(a=1, b=2)
namespace(a=1).a
namespace().a
'a' 'b'
"\\x41\\u00e9\\t\\101\\q"
'a\\'b'
0x1f + 0b11 + 0o17
1_000_000
1.5e3
.5
1.
[1, 2,]
{'a': 1,}
{'a': 1}['a']
{'a': 1}.a
[[1,2],[3]][0][1]
(n + 1) * 2
n + 1 * 2
s|upper ~ s|lower
s ~ n|string
not l is mapping
l|length > 2
l|length - 1
(l|length) == 3 and t
s|replace('H', 'J')|upper|length
s if s is string else 'no'
[x for x in l]
lambda: 1
s.split(',')|map('trim')|list
[1, [2, [3]]]|string|length
raise_exception('bad input')
raise_exception()
9223372036854775807
none|upper
t|lower
l|upper
h|forceescape
d.items()|map('first')|list
d|map('upper')|list
ms|groupby
"a\\
b"
{{1: 2}[1]}
}}
s ~
|upper
s|
""".strip("\n").split("\n")

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
