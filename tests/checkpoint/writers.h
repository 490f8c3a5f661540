#pragma once
// Writes checkpoint files for tests: well-formed by default, damaged on demand.

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/gguf/gguf_file.h"

namespace somnus {

template <typename T>
std::string Encode(T value) {
  std::string bytes(sizeof(value), '\0');
  std::memcpy(bytes.data(), &value, sizeof(value));
  return bytes;
}

// Header length, header, data.
std::string SafetensorsFile(const std::string& header, const std::string& data);

// F32 tensors {name, shape} with elements that count up from 0 over the whole file.
std::string SafetensorsOf(const std::vector<std::pair<std::string, std::vector<int64_t>>>& tensors);

// Collects metadata and tensors, then writes version 3 with an alignment of 32.
class GgufWriter {
 public:
  void String(const std::string& key, const std::string& value);
  void Uint32(const std::string& key, uint32_t value);
  void Float32(const std::string& key, float value);
  void Bool(const std::string& key, bool value);
  void Strings(const std::string& key, const std::vector<std::string>& values);
  void Int32s(const std::string& key, const std::vector<int32_t>& values);
  void Float32s(const std::string& key, const std::vector<float>& values);
  // Any type: `encoded` are the bytes after the type's number.
  void Raw(const std::string& key, uint32_t type, const std::string& encoded);
  // `dims` in GGUF's order: the fastest first.
  void Tensor(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type,
              const std::string& data);
  // As Tensor, at an offset of the caller's choice, without data.
  void TensorAt(const std::string& name, const std::vector<uint64_t>& dims, uint32_t type, uint64_t offset);

  std::string Write(uint32_t version = 3) const;
  // Bytes before the tensor data, without padding.
  std::string Header(uint32_t version = 3) const;

 private:
  std::string keys_, descriptions_, data_;
  uint64_t num_keys_ = 0, num_tensors_ = 0;
};

// Metadata and F32 tensors of a llama with hidden size 8, two heads, one KV head, one layer and six tokens.
GgufWriter TinyGguf(const std::string& architecture = "llama");

// A new directory under TEST_TMPDIR.
std::string MakeTempDir();
void WriteFile(const std::string& path, const std::string& bytes);
std::string ReadFile(const std::string& path);

}  // namespace somnus
