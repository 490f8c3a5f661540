#pragma once
// POST /weight_checker: whether the weights of all ranks are what they were. Blocks; thread safe.

#include "absl/strings/string_view.h"
#include "coordinator/http/http_response.h"
#include "coordinator/openai/served_model.h"
#include "coordinator/operators/lifecycle_parameters.h"

namespace somnus {

// By the parameter `action`: "checksum" tells the checksums of all ranks, "snapshot" keeps them, too, and
// "compare" compares them with those that were kept last, or with the object `baseline` of the body, whose
// result is no error. Errors: 409 where the weights sleep, are stale, or change meanwhile, where nothing was
// kept, and where the weights are not those that were kept; the message names tensors.
HttpResponse CheckWeights(const ServedModel& model, const LifecycleParameters& parameters,
                          absl::string_view body);

}  // namespace somnus
