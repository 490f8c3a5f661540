#pragma once
// Small JSON documents (config.json and its like) as a DOM, with getters that name file and key when a value
// has the wrong type. Include from .cc files only: nlohmann/json.hpp is large.

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace somnus {

// Parses one JSON object. InvalidArgument on a syntax error, on anything but an object, or when nested deeper
// than JsonReader::kMaxDepth. Never throws. As in Python's json module, with which model files are written,
// NaN, Infinity and -Infinity may stand for a number: a getter that finds one of these values refuses the
// key, and where no getter looks the value does not matter.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view file, absl::string_view text);

// Typed access to one object of a file. A missing key and null are the same thing: "unset", as in Hugging
// Face. The first error is kept, and from then on getters return the default. Borrows the object.
class JsonFields {
 public:
  JsonFields(std::string file, const nlohmann::json& object, std::string prefix = "");

  bool Has(absl::string_view key) const;
  // The raw value, null included; nullptr for a missing key. For values that the getters below do not read,
  // and where null is not "unset".
  const nlohmann::json* Find(absl::string_view key) const;
  bool Bool(absl::string_view key, bool otherwise);
  std::string String(absl::string_view key, absl::string_view otherwise);
  double Double(absl::string_view key, double otherwise);
  // An integer; a value outside [min, max] is an error.
  int64_t Int(absl::string_view key, int64_t otherwise, int64_t min, int64_t max);
  // A positive int32 that must be there.
  int32_t Size(absl::string_view key);
  int32_t Size(absl::string_view key, int32_t otherwise);
  std::optional<double> OptionalDouble(absl::string_view key);
  // An integer or a list of integers.
  std::vector<int32_t> Ids(absl::string_view key);
  // The object under `key`; an empty object when unset or of another type (which is an error).
  const nlohmann::json& Object(absl::string_view key);

  absl::Status Bad(absl::string_view key, absl::string_view reason) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view reason) const;
  // Keeps the first error.
  void Note(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  const absl::Status& status() const { return status_; }
  const std::string& file() const { return file_; }

 private:
  const nlohmann::json* Get(absl::string_view key) const;

  std::string file_, prefix_;
  const nlohmann::json& object_;
  absl::Status status_;
};

}  // namespace somnus
