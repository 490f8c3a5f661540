// The corpus of schemas through the gate and the grammar engine: no wrong instance is accepted, and every
// right instance is.

#include <algorithm>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "coordinator/structured/schema_gate.h"
#include "gtest/gtest.h"
#include "tests/structured/small_vocabulary.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;
using Order = std::vector<std::string>;

constexpr size_t kMostSpellings = 300;

// The orders of all properties within `schema`.
void CollectOrders(const Json& schema, std::vector<Order>* orders) {
  if (schema.is_object() && schema.contains("properties") && schema["properties"].is_object()) {
    Order order;
    for (const auto& member : schema["properties"].items()) order.push_back(member.key());
    if (std::find(orders->begin(), orders->end(), order) == orders->end())
      orders->push_back(std::move(order));
  }
  if (!schema.is_structured()) return;
  for (const Json& inner : schema) CollectOrders(inner, orders);
}

// Every way to take one text of each list, up to kMostSpellings, joined by commas.
std::vector<std::string> Joined(const std::vector<std::vector<std::string>>& lists) {
  std::vector<std::string> out = {""};
  for (size_t i = 0; i < lists.size(); ++i) {
    std::vector<std::string> longer;
    for (const std::string& head : out) {
      for (const std::string& tail : lists[i]) {
        if (longer.size() < kMostSpellings) longer.push_back(i == 0 ? tail : head + "," + tail);
      }
    }
    out = std::move(longer);
  }
  return out;
}

// Texts of a value, with the members of objects in every order of the schema.
std::vector<std::string> Spellings(const Json& value, const std::vector<Order>& orders) {
  std::vector<std::string> out;
  if (value.is_number_float() && value.get<double>() == static_cast<double>(value.get<int64_t>())) {
    return {std::to_string(value.get<int64_t>())};
  }
  if (!value.is_structured()) return {value.dump()};
  if (value.is_array()) {
    std::vector<std::vector<std::string>> items;
    for (const Json& item : value) items.push_back(Spellings(item, orders));
    for (const std::string& text : Joined(items)) out.push_back("[" + text + "]");
    return out;
  }
  std::vector<Order> sequences;
  for (const Order& order : orders) {
    Order sequence;
    for (const std::string& name : order) {
      if (value.contains(name)) sequence.push_back(name);
    }
    for (const auto& member : value.items()) {
      if (std::find(order.begin(), order.end(), member.key()) == order.end())
        sequence.push_back(member.key());
    }
    if (std::find(sequences.begin(), sequences.end(), sequence) == sequences.end())
      sequences.push_back(sequence);
  }
  for (const Order& sequence : sequences) {
    std::vector<std::vector<std::string>> members;
    for (const std::string& name : sequence) {
      members.emplace_back();
      for (const std::string& text : Spellings(value[name], orders)) {
        members.back().push_back(Json(name).dump() + ":" + text);
      }
    }
    for (const std::string& text : Joined(members)) out.push_back("{" + text + "}");
    if (out.size() > kMostSpellings) break;
  }
  return out;
}

TEST(SchemaCorpusTest, InstancesAreJudgedAsTheSchemaSays) {
  const std::unique_ptr<GrammarCompiler> compiler = SmallCompiler();
  std::ifstream file("tests/data/schema_corpus.jsonl");
  ASSERT_TRUE(file.is_open());
  int served = 0;
  for (std::string line; std::getline(file, line);) {
    const Json entry = Json::parse(line);
    const SchemaOrRefusal gated = GateSchema(entry["schema"], {});
    if (std::holds_alternative<SchemaRefusal>(gated)) {
      EXPECT_EQ(entry["kind"], "hard") << entry["schema"].dump() << std::get<SchemaRefusal>(gated).message;
      continue;
    }
    const Json& schema = std::get<Json>(gated);
    const auto grammar = compiler->Compile(SourceOf(GrammarKind::kJsonSchema, schema.dump()));
    ASSERT_TRUE(grammar.ok()) << grammar.status() << schema.dump();
    ++served;
    std::vector<Order> orders = {{}};
    CollectOrders(schema, &orders);
    for (const Json& test : entry["tests"]) {
      const std::vector<std::string> texts = Spellings(test[1], orders);
      const bool accepted = std::any_of(texts.begin(), texts.end(),
                                        [&](const std::string& text) { return Matches(**grammar, text); });
      EXPECT_EQ(accepted, test[0].get<bool>()) << test[1].dump() << " of " << entry["schema"].dump();
    }
  }
  EXPECT_GE(served, 240);
}

// The gate writes these lengths in parts, as the engine's own way to count beyond 128 has slow masks.
TEST(SchemaCorpusTest, LengthsBeyondTheEnginesCountsAreExact) {
  const std::unique_ptr<GrammarCompiler> compiler = SmallCompiler();
  const std::pair<int, int> bounds[] = {{0, 128}, {0, 129},   {127, 129}, {1, 256},
                                        {0, 300}, {255, 258}, {300, 300}, {200, -1}};
  for (const auto& [min, max] : bounds) {
    Json schema = {{"type", "string"}, {"minLength", min}};
    if (max >= 0) schema["maxLength"] = max;
    SCOPED_TRACE(schema.dump());
    const SchemaOrRefusal gated = GateSchema(schema, {});
    ASSERT_TRUE(std::holds_alternative<Json>(gated));
    const auto grammar = compiler->Compile(SourceOf(GrammarKind::kJsonSchema, std::get<Json>(gated).dump()));
    ASSERT_TRUE(grammar.ok()) << grammar.status();
    for (const int length :
         {0, 1, 126, 127, 128, 129, 130, 199, 200, 254, 255, 256, 257, 258, 259, 299, 300, 301, 400}) {
      const bool fits = length >= min && (max < 0 || length <= max);
      EXPECT_EQ(Matches(**grammar, "\"" + std::string(static_cast<size_t>(length), 'x') + "\""), fits)
          << length;
    }
  }
}

}  // namespace
}  // namespace somnus
