#include "tools/cli/transition_json.h"

#include <google/protobuf/util/json_util.h>

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"

namespace somnus::cli {
namespace {

using Json = nlohmann::ordered_json;

// No text in these messages is a number: texts are names of tags and of their states.
void MakeNumbers(Json* value) {
  int64_t number = 0;
  if (value->is_structured()) {
    for (Json& element : *value) MakeNumbers(&element);
  } else if (value->is_string() && absl::SimpleAtoi(value->get_ref<const std::string&>(), &number)) {
    *value = number;
  }
}

}  // namespace

absl::StatusOr<std::string> TransitionJson(const google::protobuf::Message& response) {
  std::string text;
  google::protobuf::util::JsonPrintOptions options;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  if (!google::protobuf::util::MessageToJsonString(response, &text, options).ok())
    return absl::InternalError("the report cannot be printed as JSON");
  Json fields = Json::parse(text);
  MakeNumbers(&fields);
  return fields.dump(1, ' ', /*ensure_ascii=*/true);
}

}  // namespace somnus::cli
