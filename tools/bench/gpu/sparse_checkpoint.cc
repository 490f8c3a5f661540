#include "tools/bench/gpu/sparse_checkpoint.h"

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "checkpoint/checkpoint.h"
#include "nlohmann/json.hpp"

namespace somnus {
namespace {

absl::StatusOr<const char*> SafetensorsType(StorageType type) {
  if (type == StorageType::kF32) return "F32";
  if (type == StorageType::kF16) return "F16";
  if (type == StorageType::kBF16) return "BF16";
  return absl::UnimplementedError("safetensors have no quantized types");
}

}  // namespace

absl::Status WriteSparseCheckpoint(const std::string& model, const std::string& directory) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> shapes, Checkpoint::Open(model, LoadFormat::kDummy));
  nlohmann::json tensors;
  uint64_t bytes = 0;
  for (const TensorInfo* tensor : shapes->Tensors()) {
    ASSIGN_OR_RETURN(const char* const type, SafetensorsType(tensor->type));
    uint64_t end = bytes + (tensor->type == StorageType::kF32 ? 4 : 2);
    for (const int64_t n : tensor->shape) end = bytes + (end - bytes) * static_cast<uint64_t>(n);
    tensors[tensor->name] = {{"dtype", type}, {"shape", tensor->shape}, {"data_offsets", {bytes, end}}};
    bytes = end;
  }
  std::string header = tensors.dump();
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t header_bytes = header.size();

  std::error_code error;
  std::filesystem::copy_file(model + "/config.json", directory + "/config.json",
                             std::filesystem::copy_options::overwrite_existing, error);
  const std::string path = directory + "/model.safetensors";
  std::ofstream file(path, std::ios::binary);
  for (int i = 0; i < 8; ++i) file.put(static_cast<char>(header_bytes >> 8 * i));
  file << header;
  file.close();
  if (!error && file) std::filesystem::resize_file(path, 8 + header_bytes + bytes, error);
  if (!error && file) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat("cannot write a checkpoint into ", directory, ": ", error.message()));
}

}  // namespace somnus
