#pragma once
// The common base of the Hugging Face and the GGUF readers: a configuration, a table of mapped tensors, and
// the reading of rows.

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/tensor_table.h"

namespace somnus {

class MappedCheckpoint : public Checkpoint {
 public:
  MappedCheckpoint(ModelConfig config, TensorTable tensors);

  const ModelConfig& config() const override { return config_; }
  const TensorInfo* Find(absl::string_view name) const override { return tensors_.Find(name); }
  std::vector<const TensorInfo*> Tensors() const override { return tensors_.All(); }
  absl::Status ReadRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                        int64_t col_end, float* out) const override;
  absl::Status ReadStoredRows(const TensorInfo& tensor, int64_t row_begin, int64_t row_end, int64_t col_begin,
                              int64_t col_end, void* out) const override;

 private:
  ModelConfig config_;
  TensorTable tensors_;
};

// The functions that Checkpoint::Open calls, one for each kind of checkpoint.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfCheckpoint(const std::string& directory);
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& path);
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDummyCheckpoint(const std::string& directory);

}  // namespace somnus
