// Gates schemas for scripts: reads a schema a line, writes {"schema": ...} or {"refusal": {pointer, keyword,
// message}} a line. With "regex" as argument, the lines are patterns, as JSON strings.

#include <iostream>
#include <string>
#include <variant>

#include "coordinator/structured/schema_gate.h"

namespace {

using Json = nlohmann::ordered_json;

Json RefusalJson(const somnus::SchemaRefusal& refusal) {
  return {{"refusal",
           {{"pointer", refusal.pointer}, {"keyword", refusal.keyword}, {"message", refusal.message}}}};
}

Json GateLine(const std::string& line, bool regex) {
  const somnus::GateOptions options;
  if (regex) {
    const auto pattern = somnus::GateRegex(Json::parse(line).get<std::string>(), options);
    if (const auto* refusal = std::get_if<somnus::SchemaRefusal>(&pattern)) return RefusalJson(*refusal);
    return {{"pattern", std::get<std::string>(pattern)}};
  }
  const auto schema = somnus::GateSchemaText(line, options);
  if (const auto* refusal = std::get_if<somnus::SchemaRefusal>(&schema)) return RefusalJson(*refusal);
  return {{"schema", std::get<Json>(schema)}};
}

}  // namespace

int main(int argc, char** argv) {
  const bool regex = argc > 1 && std::string(argv[1]) == "regex";
  for (std::string line; std::getline(std::cin, line);)
    std::cout << GateLine(line, regex).dump() << "\n" << std::flush;
}
