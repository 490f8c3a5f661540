// The parts of flags.h that are about one replica, for code that parses no flags.

#include "absl/strings/str_cat.h"
#include "base/run_dir.h"
#include "coordinator/flags/flags.h"

namespace somnus {

Flags OfReplica(const Flags& flags, int32_t replica) {
  Flags own = flags;
  own.replica = replica;
  if (flags.cluster_port > 0) own.cluster_port = flags.cluster_port + replica;
  if (flags.data_parallel_size > 1 && !flags.run_dir.empty())
    own.run_dir = RunDir::ReplicaPath(flags.run_dir, replica);
  return own;
}

std::string ReplicaPrefix(const Flags& flags) {
  const std::string model = flags.models.empty() || flags.served_model_name.empty()
                                ? ""
                                : absl::StrCat(flags.served_model_name, ": ");
  return flags.data_parallel_size == 1 ? model : absl::StrCat(model, "replica ", flags.replica, ": ");
}

}  // namespace somnus
