#pragma once
// The files of a model's tokenizer as a zip archive in chunks, from which a gateway builds the tokenizer.
// Weights are never among the files. Internal to coordinator/grpc/gateway.

#include <functional>
#include <string>

#include "absl/status/status.h"
#include "coordinator/grpc/gateway/wire.h"

namespace somnus::gateway {

// The tokenizer.json of the largest vocabularies (256 k tokens) is below 40 MB.
inline constexpr int64_t kMaxArchivedBytes = int64_t{256} << 20;

// Gives the archive of the tokenizer's files in `folder` to `write`, chunk by chunk, the last chunk with the
// hash; the files are mapped, not copied. A `chat_template` that is not empty takes the place of the files
// with templates. Cancelled: `write` has returned false. NotFound: `folder` has no tokenizer.
// FailedPrecondition: the files are larger than kMaxArchivedBytes. Messages have no paths.
absl::Status WriteTokenizer(const std::string& folder, const std::string& chat_template,
                            const std::function<bool(const common::GetTokenizerChunk&)>& write);

}  // namespace somnus::gateway
