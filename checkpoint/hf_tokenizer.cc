#include "checkpoint/hf_tokenizer.h"
namespace somnus {
absl::StatusOr<TokenizerData> ReadHfTokenizer(const std::string& directory) {
  return absl::UnimplementedError("tokenizer");
}
}  // namespace somnus
