#pragma once
// From the message of a Generate or Embed call to the parameters of a request. The HTTP API has the same
// fields under the same names, so the parser of the HTTP API applies the same rules. Internal to
// coordinator/grpc.

#include <grpcpp/server_context.h>

#include "coordinator/http/api_limits.h"
#include "coordinator/openai/openai_request.h"
#include "coordinator/openai/served_model.h"
#include "proto/inference.pb.h"

namespace somnus {

// The times are those of the call: its deadline, and its metadata. Tokenizes a text, which takes time.
GenerateOrError ReadRequest(const grpc::ServerContext& context, const v1::GenerateRequest& request,
                            const ServedModel& model, const ApiLimits& limits);
GenerateOrError ReadRequest(const grpc::ServerContext& context, const v1::EmbedRequest& request,
                            const ServedModel& model, const ApiLimits& limits);

}  // namespace somnus
