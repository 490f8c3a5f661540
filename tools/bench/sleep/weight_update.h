#pragma once
// A trainer that sends all weights of a model, to time how long that takes.

#include <cstdint>

#include "absl/status/statusor.h"
#include "checkpoint/checkpoint.h"

namespace somnus {

enum class WeightTransport {
  kMessages,      // the tensors' bytes are in the messages
  kDirect,        // and the messages go to the workers directly
  kSharedMemory,  // the workers read the tensors from POSIX shared memory
};

struct MeasuredUpdate {
  double seconds = 0;  // from the call until the new version is served
  // Parts of `seconds`: until the call is open (kDirect: and the workers' ports, too); until all tensors are
  // sent, and with kDirect received; until the server has replied, which includes all work still under way.
  double begin = 0, tensors = 0, finish = 0;
  int64_t bytes = 0;  // of all tensors, in bfloat16
};

// Sends every tensor of `checkpoint` as bfloat16 zeros, which cost what other values do, to the operators'
// gRPC port of this host. Blocks. NotFound: there is no shared memory.
absl::StatusOr<MeasuredUpdate> SendWeights(int port, const Checkpoint& checkpoint, WeightTransport transport);

}  // namespace somnus
