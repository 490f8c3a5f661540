// A small fuzzer with a fixed seed, which runs with the tests.

#include <gtest/gtest.h>

#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "tests/tokenizer/fuzz_entries.h"
#include "tests/tokenizer/golden_files.h"
#include "text/jinja/chat_template.h"

namespace somnus {
namespace {

std::vector<std::string> Seeds() {
  const auto lines = ReadGolden("templates.jsonl");
  return lines.at(0)["templates"].get<std::vector<std::string>>();
}

// Words of the template language.
constexpr const char* kWords[] = {"{{",
                                  "}}",
                                  "{%",
                                  "%}",
                                  "{#",
                                  "#}",
                                  "-",
                                  "+",
                                  "*",
                                  "/",
                                  "%",
                                  "~",
                                  "|",
                                  "(",
                                  ")",
                                  "[",
                                  "]",
                                  "{",
                                  "}",
                                  ":",
                                  ",",
                                  ".",
                                  "=",
                                  "==",
                                  "<",
                                  " in ",
                                  " is ",
                                  " not ",
                                  " if ",
                                  " else ",
                                  "{% if l %}",
                                  "{% endif %}",
                                  "{% for x in l %}",
                                  "{% endfor %}",
                                  "{% set x = ",
                                  "{% macro m(a) %}",
                                  "{% endmacro %}",
                                  "m(1)",
                                  "range(9)",
                                  "9999999999",
                                  "-1",
                                  "0",
                                  "1.5",
                                  "'a'",
                                  "none",
                                  "namespace()",
                                  "loop.index",
                                  "messages",
                                  "|tojson",
                                  "|join",
                                  "|sort",
                                  "|map('upper')",
                                  ".split('e')",
                                  "[::-1]",
                                  "[1:]",
                                  "\xc3\xa9",
                                  "\xff",
                                  "\\",
                                  "\n",
                                  "**",
                                  "//",
                                  "{% raw %}",
                                  "{% endraw %}",
                                  "{% break %}",
                                  "{% call m() %}",
                                  "{% endcall %}"};

// Cuts, doubles, joins and overwrites parts of inputs, with kWords as dictionary.
std::string Mutate(const std::vector<std::string>& seeds, std::mt19937* random) {
  const auto below = [random](size_t n) { return n == 0 ? 0 : (*random)() % n; };
  std::string text = seeds[below(seeds.size())];
  for (size_t n = 1 + below(6); n > 0; --n) {
    const size_t at = below(text.size() + 1);
    switch (below(5)) {
      case 0:
        text.erase(at, below(12));
        break;
      case 1:
        text.insert(at, kWords[below(std::size(kWords))]);
        break;
      case 2:
        text.insert(at, text.substr(below(text.size() + 1), below(40)));
        break;
      case 3:
        text += seeds[below(seeds.size())];
        break;
      default:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
    }
  }
  return text;
}

TEST(MutationTest, ChatTemplates) {
  const std::vector<std::string> seeds = Seeds();
  std::mt19937 random(11);
  for (int i = 0; i < 20000; ++i) FuzzChatTemplate(Mutate(seeds, &random));
}

TEST(MutationTest, Tokenizer) {
  std::mt19937 random(12);
  const std::vector<std::string> seeds = {"ab abc <|a|> x", "<|a  |> <|a|", "caf\xc3\xa9 \xf0\x9f\x98\x80",
                                          "  \n\t aab", "\u2581\u2581a  \u2581 ab"};
  for (int i = 0; i < 20000; ++i) FuzzTokenizer(Mutate(seeds, &random));
}

TEST(MutationTest, Patterns) {
  std::mt19937 random(13);
  const std::string text = std::string(1, '\0') + "It's 123 caf\xc3\xa9s,  isn't\r\n\n it?";
  const std::vector<std::string> seeds = {
      "'s|'t| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+" + text,
      "(?i:'s|'t)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|\\s*[\\r\\n]+" + text,
      "[a-z\\w]+?|\\h\\S" + text};
  for (int i = 0; i < 3000; ++i) FuzzRegex(Mutate(seeds, &random));
}

}  // namespace
}  // namespace somnus
