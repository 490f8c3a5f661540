#include "coordinator/flags.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace somnus {

absl::Status FinishFlags(const std::vector<std::string>& positional, Flags* flags) {
  for (const std::string& model : positional) {
    if (!flags->model.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("unexpected argument '", model, "'"));
    }
    flags->model = model;
  }
  if (flags->model.empty()) return absl::InvalidArgumentError("--model: no model was given; see --help");
  if (flags->max_num_batched_tokens < flags->max_num_seqs) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-num-batched-tokens: ", flags->max_num_batched_tokens,
                     " is less than --max-num-seqs (", flags->max_num_seqs, ")"));
  }
  if (flags->max_long_partial_prefills > flags->max_num_partial_prefills) {
    return absl::InvalidArgumentError(
        absl::StrCat("--max-long-partial-prefills: ", flags->max_long_partial_prefills,
                     " is more than --max-num-partial-prefills (", flags->max_num_partial_prefills, ")"));
  }
  if (!flags->local_workers && !flags->device_indices.empty()) {
    return absl::InvalidArgumentError(
        "--device-indices: remote workers are told their GPU where they are started, by worker "
        "--device-index");
  }
  const bool is_admin = flags->port == flags->admin_port && flags->host == flags->admin_host;
  if (flags->port != 0 && (flags->port == flags->grpc_port || is_admin)) {
    return absl::InvalidArgumentError(absl::StrCat("--port: ", flags->port, " is given twice"));
  }
  return absl::OkStatus();
}

absl::StatusOr<Flags> ParseFlags(const std::vector<std::string>& args) {
  Flags flags;
  ASSIGN_OR_RETURN(const ParsedArgs parsed, ParseArgs(CoordinatorFlags(&flags), args));
  RETURN_IF_ERROR(FinishFlags(parsed.positional, &flags));
  return flags;
}

}  // namespace somnus
