#include "text/jinja/chat_template.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "tests/tokenizer/golden_files.h"
#include "tests/tokenizer/load_tokenizer.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

absl::StatusOr<std::string> Render(const std::string& source, const Json& context = Json::object(),
                                   const ChatTemplateLimits& limits = {}) {
  const auto compiled = ChatTemplate::Compile(source, limits);
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->Render(context);
}

// `text` is null where jinja2 raises.
void ExpectGolden(const std::string& source, const Json& context, const Json& text) {
  const absl::StatusOr<std::string> out = Render(source, context);
  if (text.is_null()) {
    EXPECT_FALSE(out.ok()) << source << "\n" << *out;
    return;
  }
  ASSERT_TRUE(out.ok()) << source << "\n" << out.status();
  EXPECT_EQ(*out, text.get<std::string>()) << source;
}

TEST(ChatTemplateGoldenTest, EqualsJinja2) {
  const std::vector<Json> lines = ReadGolden("templates.jsonl");
  ASSERT_GE(lines.size(), 600u);
  for (size_t i = 1; i < lines.size(); ++i) {
    ExpectGolden(lines[0]["templates"][lines[i]["template"].get<size_t>()],
                 lines[0]["contexts"][lines[i]["context"].get<size_t>()], lines[i]["text"]);
  }
}

TEST(ChatTemplateGoldenTest, Llama3EqualsJinja2) {
  const auto directory = LargeTokenizerDirectory("llama3");
  if (!directory) GTEST_SKIP() << "set SOMNUS_TOKENIZER_DIR to a directory with llama3/tokenizer_config.json";
  const std::string source = LoadChatTemplate(*directory);
  const std::vector<Json> lines = ReadGolden("templates_llama3.jsonl");
  ASSERT_GE(lines.size(), 20u);
  for (size_t i = 1; i < lines.size(); ++i) {
    ExpectGolden(source, lines[0]["contexts"][lines[i]["context"].get<size_t>()], lines[i]["text"]);
  }
}

TEST(ChatTemplateTest, ErrorsNameLineAndReason) {
  const auto message = [](const std::string& source) {
    return std::string(Render(source).status().message());
  };
  EXPECT_EQ(message("a\n{% if %}"), "line 2: expected an expression, got '%}'");
  EXPECT_EQ(message("a\n\n{{ x.y }}"), "line 3: 'x' is undefined");
  EXPECT_EQ(message("{% nosuch %}"), "line 1: expected a known tag, got 'nosuch'");
  EXPECT_EQ(message("{{ 1|nosuch }}"), "line 1: no filter named 'nosuch'");
  EXPECT_EQ(message("{{ raise_exception('Roles must alternate') }}"), "Roles must alternate");
  EXPECT_EQ(Render("{{ 'a' + 1 }}").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Render("\xff").status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Render("x", Json::array()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, StrftimeNowFormatsTheClock) {
  const absl::StatusOr<std::string> year = Render("{{ strftime_now('%Y') }}");
  ASSERT_TRUE(year.ok()) << year.status();
  EXPECT_EQ(year->size(), 4u);
  EXPECT_EQ(Render("{{ strftime_now('[%%]') }}").value(), "[%]");
}

TEST(ChatTemplateTest, EscapesOfSurrogatePairsBecomeOneCharacter) {
  EXPECT_EQ(Render("{{ '\\ud83d\\ude00' }}").value(), "\U0001f600");
  EXPECT_EQ(Render("{{ '\\ud83d' }}").value(), "\ufffd");
}

TEST(ChatTemplateTest, OneTemplateRendersManyTimes) {
  const auto compiled = ChatTemplate::Compile("{% set n = x + 1 %}{{ n }}");
  ASSERT_TRUE(compiled.ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ((*compiled)->Render(Json{{"x", i}}).value(), std::to_string(i + 1));
}

// Without limits each of these would take gigabytes, hours or the whole stack.
TEST(ChatTemplateLimitsTest, AttacksEndWithAnError) {
  const std::string kAttacks[] = {
      "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
      "{{ 'x' * 9999999999 }}",
      "{{ [0] * 9999999999 }}",
      "{{ ([0] * 99999)|join('x' * 99999) }}",
      "{{ range(9999999999) }}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor "
      "%}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor "
      "%}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s|replace('x', 'xx') "
      "%}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s %}{{ ns.s }}{{ ns.s }}{% "
      "endset %}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = '%s%s' % (ns.s, ns.s) "
      "%}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = '{0}{0}'.format(ns.s) "
      "%}{% endfor %}",
      "{% set ns = namespace(s='xxxxxxxx') %}{% for i in range(60) %}{% set ns.s = ns.s.join([ns.s, ns.s]) "
      "%}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ "
      "ns.l }}",
      "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(60) %}{% set ns.l = [ns.l, ns.l] %}{% set "
      "ns.m = [ns.m, ns.m] "
      "%}{% endfor %}{{ ns.l == ns.m }}",
      "{% set ns = namespace(d={}) %}{% for i in range(60) %}{% set ns.d = {'a': ns.d, 'b': ns.d} %}{% "
      "endfor %}{{ ns.d|tojson }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99999) %}{% set ns.l = [ns.l] %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% macro m(x) %}{% call m(x) %}{{ caller() }}{% endcall %}{% endmacro %}{{ m(1) }}",
      "{{ 'x'|indent(999999999) }}",
      "{{ [[[1]]]|tojson(indent=999999999) }}",
      "{{ 'x'.center(9999999999) }}",
      "{{ 'x'.zfill(9999999999) }}",
      "{{ '%9999999999d' % 1 }}",
      "{{ '%.9999999999f' % 1.5 }}",
      "{{ '{:9999999999}'.format(1) }}",
      "{{ [1]|batch(9999999999, 0) }}",
      "{{ 9 ** 999999999 }}",
      "{{ strftime_now('%c' * 100000) }}",
      "{% for i in range(99999) %}{{ 'x' * 9999 }}{% endfor %}",
      std::string(100000, '(') + "{{ " + std::string(100000, '('),
      "{{ " + std::string(100000, '[') + " }}",
      "{{ " + std::string(100000, '-') + "1 }}",
      "{{ not " + std::string(100000, ' ') + std::string(50000, '(') + "1 }}",
  };
  for (const std::string& attack : kAttacks) {
    const absl::StatusOr<std::string> out = Render(attack);
    EXPECT_FALSE(out.ok()) << attack.substr(0, 200);
  }
  std::string nested;
  for (int i = 0; i < 20000; ++i) nested += "{% if 1 %}";
  EXPECT_EQ(Render(nested).status().code(), absl::StatusCode::kResourceExhausted);
}

// Long, but not deep: chains are flat.
TEST(ChatTemplateLimitsTest, LongChainsAreFine) {
  std::string sum = "{{ 0";
  for (int i = 0; i < 20000; ++i) sum += "+1";
  EXPECT_EQ(Render(sum + " }}").value(), "20000");
  std::string filters = "{{ 'a'";
  for (int i = 0; i < 20000; ++i) filters += "|upper";
  EXPECT_EQ(Render(filters + " }}").value(), "A");
  std::string branches = "{% if 0 %}";
  for (int i = 0; i < 5000; ++i) branches += "{% elif 0 %}";
  EXPECT_EQ(Render(branches + "{% else %}x{% endif %}").value(), "x");
}

TEST(ChatTemplateLimitsTest, CyclesAndChainsAreTakenApart) {
  EXPECT_TRUE(Render("{% set ns = namespace() %}{% set ns.me = ns %}{{ ns.me.me is defined }}").ok());
  EXPECT_TRUE(
      Render("{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% set m = namespace(p=ns.p) %}"
             "{% set ns.p = m %}{% endfor %}")
          .ok());
  EXPECT_TRUE(Render("{% set ns = namespace(p=none) %}{% for i in range(50000) %}{% for j in [ns.p] %}"
                     "{% set ns.p = loop %}{% endfor %}{% endfor %}")
                  .ok());
  EXPECT_TRUE(Render("{% set ns = namespace() %}{% for i in range(9) %}{% macro m() %}{{ i }}{% endmacro %}"
                     "{% set ns.m = m %}{% endfor %}{{ ns.m() }}")
                  .ok());
}

TEST(ChatTemplateLimitsTest, LimitsAreTheCallers) {
  ChatTemplateLimits limits{.max_output_bytes = 10};
  EXPECT_EQ(Render("{{ 'x' * 11 }}", Json::object(), limits).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Render("{{ 'x' * 10 }}", Json::object(), limits).ok());
  limits = {};
  limits.max_template_bytes = 4;
  EXPECT_EQ(Render("12345", Json::object(), limits).status().code(), absl::StatusCode::kResourceExhausted);
  limits = {};
  limits.max_steps = 50;
  EXPECT_EQ(Render("{% for i in range(40) %}{{ i }}{% endfor %}", Json::object(), limits).status().code(),
            absl::StatusCode::kResourceExhausted);
  Json deep = 1;
  for (int i = 0; i < 5000; ++i) deep = Json::array({std::move(deep)});
  EXPECT_EQ(Render("x", Json{{"deep", std::move(deep)}}).status().code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(ChatTemplateLimitsTest, LongConversationsFit) {
  Json messages = Json::array();
  for (int i = 0; i < 2000; ++i)
    messages.push_back({{"role", i % 2 ? "assistant" : "user"}, {"content", std::string(1000, 'x')}});
  const absl::StatusOr<std::string> out = Render(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m.content|trim + '<|im_end|>\n' }}{% "
      "endfor %}",
      Json{{"messages", messages}});
  ASSERT_TRUE(out.ok()) << out.status();
  EXPECT_GT(out->size(), 2'000'000u);
}

}  // namespace
}  // namespace somnus
