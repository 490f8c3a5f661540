#include "text/tools/tool_schemas.h"

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "text/tools/json_text.h"
#include "text/tools/loose_value.h"

namespace somnus {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxSchemaDepth = 16;  // of references and alternatives
// A step of a search looks at a member, a value or a byte of a reference: references may lead to the same
// schema again and again. The searches for all parameters of a request's tools share one bound, which takes
// some 10 ms; the search for one value of an answer has a bound of its own.
constexpr int64_t kMaxStepsOfTools = 1'000'000, kMaxStepsOfValue = 10'000;
constexpr ValueTypes kAllTypes = 63;

ValueTypes TypeOfName(absl::string_view name) {
  if (name == "string") return kStringType;
  if (name == "integer" || name == "number") return kNumberType;
  if (name == "boolean") return kBooleanType;
  if (name == "array") return kArrayType;
  if (name == "object") return kObjectType;
  return name == "null" ? kNullType : 0;
}

ValueTypes TypeOfValue(const Json& value) {
  if (value.is_string()) return kStringType;
  if (value.is_number()) return kNumberType;
  if (value.is_boolean()) return kBooleanType;
  if (value.is_array()) return kArrayType;
  return value.is_object() ? kObjectType : kNullType;
}

// Searches in the schemas of a function's parameters. `steps` is borrowed: so many are left, and a search
// that has none left knows nothing more.
class TypeFinder {
 public:
  TypeFinder(const Json& root, int64_t* steps) : root_(root), steps_(*steps) {}

  ValueTypes Find(const Json& schema, int depth) {
    if (!Look(schema) || !schema.is_object() || depth > kMaxSchemaDepth) return 0;
    if (const auto type = schema.find("type"); type != schema.end()) return OfType(*type);
    if (const auto value = schema.find("const"); value != schema.end()) return TypeOfValue(*value);
    if (const auto values = schema.find("enum"); values != schema.end()) return OfValues(*values);
    if (const auto ref = schema.find("$ref"); ref != schema.end() && ref->is_string()) {
      const Json* const target = Resolve(ref->get_ref<const std::string&>());
      return target == nullptr ? 0 : Find(*target, depth + 1);
    }
    for (const char* keyword : {"anyOf", "oneOf"}) {
      if (const auto list = schema.find(keyword); list != schema.end()) return OfAny(*list, depth);
    }
    if (const auto list = schema.find("allOf"); list != schema.end()) return OfAll(*list, depth);
    if (schema.contains("properties")) return kObjectType;
    return schema.contains("items") ? kArrayType : 0;
  }

  // The schema of a member, or of an item, of what `schema` describes, or null.
  const Json* Within(const Json& schema, const std::string& name, int depth) {
    if (!Look(schema) || !schema.is_object() || depth > kMaxSchemaDepth) return nullptr;
    if (const auto ref = schema.find("$ref"); ref != schema.end() && ref->is_string()) {
      const Json* const target = Resolve(ref->get_ref<const std::string&>());
      return target == nullptr ? nullptr : Within(*target, name, depth + 1);
    }
    if (const auto all = schema.find("properties"); all != schema.end() && all->is_object()) {
      if (!Look(*all)) return nullptr;
      if (const auto member = all->find(name); member != all->end()) return &*member;
    }
    for (const char* keyword : {"additionalProperties", "items"}) {
      if (const auto other = schema.find(keyword); other != schema.end() && other->is_object())
        return &*other;
    }
    for (const char* keyword : {"anyOf", "oneOf", "allOf"}) {
      const auto list = schema.find(keyword);
      if (list == schema.end() || !list->is_array()) continue;
      for (const Json& one : *list) {
        if (const Json* const found = Within(one, name, depth + 1); found != nullptr) return found;
        if (steps_ < 0) return nullptr;
      }
    }
    return nullptr;
  }

 private:
  // Counts a look at all members of an object or all values of an array. False: no steps are left.
  bool Look(const Json& value) {
    steps_ -= 1 + static_cast<int64_t>(value.size());
    return steps_ >= 0;
  }

  // The schema that a local reference names, or null.
  const Json* Resolve(absl::string_view reference) {
    steps_ -= static_cast<int64_t>(reference.size());
    if (!absl::ConsumePrefix(&reference, "#/")) return nullptr;
    const Json* at = &root_;
    for (const absl::string_view token : absl::StrSplit(reference, '/')) {
      if (!Look(*at)) return nullptr;
      size_t item = 0;
      if (at->is_array()) {
        if (!absl::SimpleAtoi(token, &item) || item >= at->size()) return nullptr;
        at = &(*at)[item];
      } else {
        if (!at->is_object()) return nullptr;
        const auto member = at->find(absl::StrReplaceAll(token, {{"~1", "/"}, {"~0", "~"}}));
        if (member == at->end()) return nullptr;
        at = &*member;
      }
    }
    return at;
  }

  ValueTypes OfType(const Json& type) {
    if (type.is_string()) return TypeOfName(type.get_ref<const std::string&>());
    ValueTypes types = 0;
    if (!type.is_array() || !Look(type)) return types;
    for (const Json& name : type) {
      if (name.is_string()) types |= TypeOfName(name.get_ref<const std::string&>());
    }
    return types;
  }

  ValueTypes OfValues(const Json& values) {
    ValueTypes types = 0;
    if (!Look(values)) return types;
    for (const Json& value : values) types |= TypeOfValue(value);
    return types;
  }

  ValueTypes OfAny(const Json& list, int depth) {
    ValueTypes types = 0;
    if (!list.is_array()) return types;
    for (const Json& schema : list) {
      const ValueTypes found = Find(schema, depth + 1);
      types |= found == 0 ? kAllTypes : found;
      if (steps_ < 0) return types;
    }
    return types;
  }

  ValueTypes OfAll(const Json& list, int depth) {
    ValueTypes types = kAllTypes;
    bool found_any = false;
    if (!list.is_array()) return 0;
    for (const Json& schema : list) {
      const ValueTypes found = Find(schema, depth + 1);
      if (steps_ < 0) break;
      if (found == 0) continue;
      found_any = true;
      types &= found;
    }
    return found_any ? types : 0;
  }

  const Json& root_;
  int64_t& steps_;
};

// The JSON of an array or object that was written as a Python literal; empty where `text` is none.
std::string JsonOfLiteral(absl::string_view text, int max_depth) {
  LooseValue value("", max_depth);
  std::string json;
  for (size_t i = 0; i < text.size(); ++i) {
    const ReadState state = value.Read(text[i], &json);
    if (state == ReadState::kDone && i + 1 == text.size()) return json;
    if (state != ReadState::kMore) return "";
  }
  return "";
}

}  // namespace

ToolSchemas::ToolSchemas(const std::vector<ToolSpec>& tools, bool keeps_schemas) {
  int64_t steps = kMaxStepsOfTools;
  for (const ToolSpec& tool : tools) {
    auto& types = types_[tool.name];
    if (!tool.parameters.is_object()) continue;
    if (keeps_schemas) schemas_.try_emplace(tool.name, tool.parameters);
    const auto properties = tool.parameters.find("properties");
    if (properties == tool.parameters.end() || !properties->is_object()) continue;
    for (const auto& [name, schema] : properties->items())
      types[name] = TypeFinder(tool.parameters, &steps).Find(schema, 0);
  }
}

ValueTypes ToolSchemas::TypesOf(absl::string_view tool, absl::string_view parameter) const {
  const auto types = types_.find(tool);
  if (types == types_.end()) return 0;
  const auto type = types->second.find(parameter);
  return type == types->second.end() ? 0 : type->second;
}

ValueTypes ToolSchemas::TypesAt(absl::string_view tool, const std::vector<std::string>& path) const {
  const auto root = schemas_.find(tool);
  if (root == schemas_.end()) return 0;
  int64_t steps = kMaxStepsOfValue;
  TypeFinder finder(root->second, &steps);
  const Json* schema = &root->second;
  for (const std::string& name : path) {
    schema = finder.Within(*schema, name, 0);
    if (schema == nullptr) return 0;
  }
  return finder.Find(*schema, 0);
}

std::string JsonOfText(absl::string_view text, ValueTypes types, int max_depth) {
  if (types == 0 || types == kStringType) return Quoted(text);
  const absl::string_view value = absl::StripAsciiWhitespace(text);
  const bool may_be_null = (types & kNullType) != 0 || (types & kStringType) == 0;
  if (may_be_null && (absl::EqualsIgnoreCase(value, "null") || absl::EqualsIgnoreCase(value, "none")))
    return "null";
  if ((types & kNumberType) != 0 && IsJsonNumber(value)) return std::string(value);
  if ((types & kBooleanType) != 0) {
    if (absl::EqualsIgnoreCase(value, "true")) return "true";
    if (absl::EqualsIgnoreCase(value, "false")) return "false";
  }
  const bool is_container = (absl::StartsWith(value, "[") && (types & kArrayType) != 0) ||
                            (absl::StartsWith(value, "{") && (types & kObjectType) != 0);
  if (is_container && IsJson(value, max_depth)) return std::string(value);
  if (is_container) {
    const std::string json = JsonOfLiteral(value, max_depth);
    if (!json.empty()) return json;
  }
  return Quoted(text);
}

}  // namespace somnus
