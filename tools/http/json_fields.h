#pragma once
// Reads fields of JSON that came from elsewhere: a field that is missing or of another type is the empty
// value.

#include <nlohmann/json.hpp>
#include <string>

namespace somnus {

inline std::string StringAt(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_string() ? found->get<std::string>() : std::string();
}

inline int IntAt(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_number_integer() ? found->get<int>() : 0;
}

inline bool BoolAt(const nlohmann::json& object, const char* key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

}  // namespace somnus
