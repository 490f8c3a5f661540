#pragma once
// From a gateway's GenerateRequest to our own, which has the same fields under other names. Pure function.
// Internal to coordinator/grpc/gateway.

#include <cstdint>
#include <variant>

#include "coordinator/grpc/gateway/wire.h"
#include "coordinator/http/api_error.h"
#include "proto/inference.pb.h"

namespace somnus::gateway {

using RequestOrError = std::variant<v1::GenerateRequest, ApiError>;

// `max_model_len`: tokens of the context. Numbers are checked by the reader of our own requests. Errors, each
// a 400: what the model cannot take (media), what this server is not (one of two engines that share a
// request), and truncate_prompt_tokens out of range.
RequestOrError TranslateRequest(const wire::GenerateRequest& request, int32_t max_model_len);

}  // namespace somnus::gateway
