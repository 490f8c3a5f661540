#include "coordinator/grpc/prefix_service.h"

#include <nlohmann/json.hpp>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/grpc/calls/bell.h"
#include "coordinator/grpc/calls/error_details.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/openai/prefix_request.h"

namespace somnus {
namespace {

using Json = nlohmann::json;

GenerateOrError Resolve(const v1::PinPrefixRequest& request, const ServedModel& model,
                        const ApiLimits& limits) {
  Json json = Json::object();
  if (request.prompt_case() == v1::PinPrefixRequest::kText) json["prompt"] = request.text();
  if (request.prompt_case() == v1::PinPrefixRequest::kTokenIds) {
    const auto& ids = request.token_ids().ids();
    const int32_t most = model.engine->max_model_len();  // before the conversion, which takes memory
    if (ids.size() > most)
      return BadRequest("prompt", absl::StrCat("prompt must have at most ", most, " entries"));
    json["prompt"] = std::vector<int32_t>(ids.begin(), ids.end());
  }
  if (!request.model().empty()) json["model"] = request.model();
  if (!request.cache_salt().empty()) json["cache_salt"] = request.cache_salt();
  if (request.priority() != 0) json["priority"] = request.priority();
  return ParsePrefixFields(json, model, limits);
}

void Fill(const ServedModel& model, const PinnedPrefix& prefix, v1::PinnedPrefix* message) {
  message->set_id(prefix.id);
  message->set_model(model.name);
  message->set_created(absl::ToUnixSeconds(prefix.created));
  message->set_tokens(prefix.num_tokens);
  message->set_blocks(prefix.num_blocks);
  message->set_held_blocks(prefix.num_held);
}

// Waits until the request's prompt is computed.
absl::Status Await(grpc::ServerContext* context, ClientRequest* request, Bell* bell) {
  while (!request->done()) {
    bell->Wait();
    if (context->IsCancelled()) return absl::CancelledError("");
    for (const ChoiceUpdate& update : request->Take()) {
      if (update.delta.finish_reason == FinishReason::kError)
        return update.delta.error.ok() ? absl::InternalError("") : update.delta.error;
      if (update.delta.finish_reason == FinishReason::kAbort) return PrefixAborted();
    }
  }
  return absl::OkStatus();
}

}  // namespace

PrefixServiceImpl::PrefixServiceImpl(const ModelTable* models, ApiKeys api_keys, const ApiLimits& limits)
    : models_(models), api_keys_(std::move(api_keys)), limits_(limits) {}

grpc::Status PrefixServiceImpl::PinPrefix(grpc::ServerContext* context, const v1::PinPrefixRequest* request,
                                          v1::PinnedPrefix* response) {
  const CallSlots::Call open(&open_calls_);
  if (!open.fits()) return TooManyCalls();
  if (grpc::Status status = CheckKey(*context, api_keys_); !status.ok()) return status;
  try {
    return Pin(context, *request, response);
  } catch (const std::exception&) {
    return {grpc::StatusCode::INTERNAL, "internal error"};
  }
}

grpc::Status PrefixServiceImpl::Pin(grpc::ServerContext* context, const v1::PinPrefixRequest& request,
                                    v1::PinnedPrefix* response) {
  SharedModel model = models_->Find(request.model());
  if (model == nullptr) model = models_->Get();  // Resolve names the fault of the name
  if (model == nullptr) return LoadingStatus(*models_);
  GenerateOrError parsed = Resolve(request, *model, limits_);
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    model->metrics->OnRejected("bad_request");
    return ToGrpcStatus(*error);
  }
  GenerateParams params = std::get<GenerateParams>(std::move(parsed));
  absl::StatusOr<std::shared_ptr<PrefixClaim>> claim = ClaimPrefix(model, params);
  if (!claim.ok()) {
    model->metrics->OnRejected("not_pinned");
    return absl::IsInvalidArgument(claim.status()) ? ToGrpcStatus(PinError(claim.status(), params))
                                                   : EngineRefusal(claim.status(), *model->engine);
  }
  ClientRequest client_request(model, &params, model->metrics, limits_.max_stream_backlog_bytes);
  const auto bell = std::make_shared<Bell>();
  absl::Status status = client_request.Submit([bell] { bell->Ring(); });
  if (!status.ok()) {
    model->metrics->OnRejected(RejectionReason(status), status);
    const grpc::Status refusal = EngineRefusal(status, *model->engine);
    // The engine is asleep, and may be woken.
    return absl::IsFailedPrecondition(status) ? WithRetry(refusal, kRetryDelay) : refusal;
  }
  status = Await(context, &client_request, bell.get());
  if (context->IsCancelled()) return grpc::Status::CANCELLED;
  if (!status.ok()) return EngineRefusal(status, *model->engine);
  Fill(*model, (*claim)->Keep(), response);
  return grpc::Status::OK;
}

std::vector<SharedModel> PrefixServiceImpl::Models(const std::string& name) const {
  if (name.empty()) return models_->All();
  const SharedModel model = models_->Find(name);
  return model == nullptr ? std::vector<SharedModel>() : std::vector<SharedModel>{model};
}

grpc::Status PrefixServiceImpl::ListPrefixes(grpc::ServerContext* context,
                                             const v1::ListPrefixesRequest* request,
                                             v1::ListPrefixesResponse* response) {
  if (grpc::Status status = CheckKey(*context, api_keys_); !status.ok()) return status;
  if (models_->Get() == nullptr) return LoadingStatus(*models_);
  const std::vector<SharedModel> models = Models(request->model());
  if (models.empty()) return ToGrpcStatus(UnknownModel(request->model(), ModelNames(models_->All())));
  for (const SharedModel& model : models) {
    for (const PinnedPrefix& prefix : model->engine->pinned_prefixes().List())
      Fill(*model, prefix, response->add_prefixes());
  }
  return grpc::Status::OK;
}

grpc::Status PrefixServiceImpl::UnpinPrefix(grpc::ServerContext* context,
                                            const v1::UnpinPrefixRequest* request, v1::UnpinPrefixResponse*) {
  if (grpc::Status status = CheckKey(*context, api_keys_); !status.ok()) return status;
  if (models_->Get() == nullptr) return LoadingStatus(*models_);
  for (const SharedModel& model : Models(request->model())) {
    if (model->engine->pinned_prefixes().Unpin(request->id()).ok()) return grpc::Status::OK;
  }
  return {grpc::StatusCode::NOT_FOUND, "id: the prefix does not exist"};
}

}  // namespace somnus
