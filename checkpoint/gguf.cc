#include "checkpoint/mapped_checkpoint.h"
namespace somnus {
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGgufCheckpoint(const std::string& path) {
  return absl::UnimplementedError("GGUF");
}
}  // namespace somnus
