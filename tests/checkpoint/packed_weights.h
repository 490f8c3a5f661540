#pragma once
// The goldens of tests/data/packed (make_packed_goldens.py), and damaged copies of them.

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "checkpoint/checkpoint.h"
#include "tests/checkpoint/writers.h"

namespace somnus {

// Each golden, and the type of its stored matrices.
inline const std::map<std::string, StorageType>& PackedGoldens() {
  static const auto* const goldens = new std::map<std::string, StorageType>{
      {"gptq4", StorageType::kQ4_0},           {"gptq4-zeros", StorageType::kQ4_1},
      {"gptq4-order", StorageType::kF32},      {"gptq8", StorageType::kQ8_0},
      {"gptq8-zeros-v2", StorageType::kF32},   {"awq4", StorageType::kQ4_1},
      {"compressed4", StorageType::kQ4_0},     {"compressed4-zeros", StorageType::kQ4_1},
      {"compressed-int8", StorageType::kQ8_0}, {"compressed-fp8", StorageType::kF8E4M3},
      {"fp8", StorageType::kF8E4M3},           {"fp8-blocks", StorageType::kF8E4M3},
  };
  return *goldens;
}

inline std::string PackedGolden(const std::string& name) { return "tests/data/packed/" + name; }

// A safetensors file taken apart.
struct Safetensors {
  nlohmann::json header;
  std::string data;

  // `offset` bytes into a tensor.
  char* At(const std::string& name, int64_t offset = 0) {
    return data.data() + header[name]["data_offsets"][0].get<int64_t>() + offset;
  }
  std::string Bytes() const { return SafetensorsFile(header.dump(), data); }
};

inline Safetensors ReadSafetensorsFile(const std::string& path) {
  const std::string bytes = ReadFile(path);
  uint64_t length = 0;
  SOMNUS_CHECK(bytes.size() > sizeof(length));
  std::memcpy(&length, bytes.data(), sizeof(length));
  return {nlohmann::json::parse(bytes.substr(sizeof(length), length)), bytes.substr(sizeof(length) + length)};
}

// A folder with a golden's files, changed.
inline std::string ChangedGolden(const std::string& name, const std::function<void(Safetensors*)>& change,
                                 const nlohmann::json& quantization = nullptr) {
  const std::string from = PackedGolden(name), to = MakeTempDir();
  nlohmann::json config = nlohmann::json::parse(ReadFile(from + "/config.json"));
  if (quantization.is_object()) config["quantization_config"].update(quantization);
  WriteFile(to + "/config.json", config.dump());
  Safetensors tensors = ReadSafetensorsFile(from + "/model.safetensors");
  change(&tensors);
  WriteFile(to + "/model.safetensors", tensors.Bytes());
  return to;
}

}  // namespace somnus
