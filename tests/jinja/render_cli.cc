// Serves tools/compare_chat_templates.py: reads one JSON request per line from stdin, and writes one reply
// per line to stdout.
//   {"template": SOURCE, "context": OBJECT} -> {"text": OUTPUT} or {"error": MESSAGE}

#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "text/jinja/chat_template.h"

namespace somnus {
namespace {

absl::StatusOr<std::string> Render(const nlohmann::ordered_json& request) {
  const auto compiled = ChatTemplate::Compile(request["template"].get<std::string>());
  if (!compiled.ok()) return compiled.status();
  return (*compiled)->Render(request["context"]);
}

}  // namespace
}  // namespace somnus

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const absl::StatusOr<std::string> text = somnus::Render(nlohmann::ordered_json::parse(line));
    nlohmann::json answer;
    if (text.ok()) {
      answer["text"] = *text;
    } else {
      answer["error"] = std::string(text.status().message());
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
