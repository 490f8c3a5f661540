#pragma once
// The GGUF container, versions 2 and 3, little-endian: typed metadata, tensor descriptions, tensor data.
// Format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
//
// Parsing allocates in proportion to the actual contents of the file: arrays stay in the map and are walked
// once to check their bounds; counts and lengths are compared with the bytes left before use.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/model_config.h"

namespace somnus {

enum class GgufType : uint32_t {
  kUint8,
  kInt8,
  kUint16,
  kInt16,
  kUint32,
  kInt32,
  kFloat32,
  kBool,
  kString,
  kArray,
  kUint64,
  kInt64,
  kFloat64
};

// Bytes of a scalar; 0 for strings, arrays and unknown types.
size_t GgufScalarBytes(GgufType type);

// A metadata value, or its place in the map. Views are valid as long as the file is mapped.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  absl::string_view bytes;  // scalars: the encoded bytes; strings: the text; arrays: the encoded elements
  GgufType element_type = GgufType::kUint8;  // of an array
  uint64_t count = 0;                        // of an array
};

struct GgufTensor {
  std::string name;  // as in the file
  uint32_t ggml_type = 0;
  std::optional<StorageType> type;  // empty: a type that cannot be read
  std::vector<int64_t> shape;       // row-major: reversed against the file
  uint64_t offset = 0, bytes = 0;   // in the file; 0 bytes when the type is unknown
};

class GgufFile {
 public:
  // InvalidArgument naming the file and the error; Unimplemented for another version or byte order.
  static absl::StatusOr<GgufFile> Parse(const MappedFile& file);

  const std::string& name() const { return name_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  bool Has(absl::string_view key) const { return metadata_.contains(key); }
  // nullptr when there is no such key.
  const GgufValue* Find(absl::string_view key) const;
  // Getters return `otherwise` for a missing key and InvalidArgument, naming the key, for a value of another
  // kind.
  absl::StatusOr<int64_t> Int(absl::string_view key, std::optional<int64_t> otherwise) const;
  absl::StatusOr<double> Double(absl::string_view key, double otherwise) const;
  absl::StatusOr<bool> Bool(absl::string_view key, bool otherwise) const;
  absl::StatusOr<std::string> String(absl::string_view key, std::optional<std::string> otherwise) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;
  absl::StatusOr<std::vector<int64_t>> Ints(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(absl::string_view key) const;

  absl::Status Bad(absl::string_view key, absl::string_view reason) const;
  absl::Status Unsupported(absl::string_view key, absl::string_view reason) const;

 private:
  friend class GgufParser;

  std::string name_;
  absl::flat_hash_map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
};

}  // namespace somnus
