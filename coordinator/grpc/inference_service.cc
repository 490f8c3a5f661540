#include "coordinator/grpc/inference_service.h"

#include <algorithm>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/adapters/adapter_registry.h"
#include "coordinator/grpc/calls/grpc_call.h"
#include "coordinator/metrics/metrics.h"
#include "coordinator/openai/client_request.h"
#include "coordinator/openai/embeddings.h"
#include "coordinator/openai/response_json.h"

namespace somnus {
namespace {

// A response has at most so many deltas: deltas of best_of come all at once, and clients refuse messages
// above 4 MiB. A delta is the output of a step, which takes 8 KiB at most except for rare texts.
constexpr int kMaxDeltas = 256;
constexpr int64_t kMaxEmbeddingBytes = 1 << 20;  // of a response, unless one embedding takes more

void FillLogprobs(const Tokenizer& tokenizer, const Logprobs& from, v1::PositionLogprobs* to) {
  for (size_t i = 0; i < from.token_ids.size(); ++i) {
    v1::TokenLogprob* token = to->add_tokens();
    token->set_token_id(from.token_ids[i]);
    token->set_logprob(from.logprobs[i]);
    token->set_rank(i == 0 ? from.rank : static_cast<int32_t>(i));
    token->set_text(tokenizer.TokenBytes(from.token_ids[i]));
  }
}

void FillResponse(const Tokenizer& tokenizer, const GenerateParams& params, const ChoiceUpdate& update,
                  v1::GenerateResponse* response) {
  const OutputDelta& delta = update.delta;
  if (update.index == 0) {
    for (const Logprobs& position : delta.prompt_logprobs) {
      FillLogprobs(tokenizer, position, response->add_prompt_logprobs());
    }
  }
  v1::ChoiceDelta* choice = response->add_choices();
  choice->set_index(update.index);
  choice->set_text(delta.text);
  choice->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  if (params.logprobs) {  // for best_of they are computed where nobody asks
    for (const Logprobs& logprobs : delta.logprobs) FillLogprobs(tokenizer, logprobs, choice->add_logprobs());
  }
  choice->set_finish_reason(FinishReasonName(delta.finish_reason));
  if (delta.stop_string.has_value()) choice->set_stop_reason(*delta.stop_string);
  if (delta.stop_token_id.has_value()) choice->set_stop_reason(absl::StrCat(*delta.stop_token_id));
}

void FillUsage(const ClientRequest& request, v1::Usage* usage) {
  usage->set_prompt_tokens(static_cast<int32_t>(request.prompt_tokens()));
  usage->set_completion_tokens(static_cast<int32_t>(request.completion_tokens()));
  usage->set_cached_tokens(static_cast<int32_t>(request.cached_tokens()));
}

int NumParts(const v1::GenerateResponse& response) { return response.choices_size(); }
int NumParts(const v1::EmbedResponse& response) { return response.embeddings_size(); }

// Collects the parts of a stream's responses: deltas or embeddings.
template <typename Response>
class PartsWriter : public GenerateWriter {
 public:
  PartsWriter(GenerateCall* call, grpc::ServerWriter<Response>* writer) : call_(call), writer_(writer) {}

  bool Add(ChoiceUpdate update) override {
    // Weights may be replaced between two tokens.
    const int64_t version = update.delta.weights_version;
    const bool another = NumParts(response_) >= MaxParts() || response_.weights_version() != version;
    if (NumParts(response_) > 0 && another && !Write(grpc::WriteOptions())) return false;
    response_.set_weights_version(version);
    AddPart(std::move(update));
    return true;
  }
  bool Flush(bool last) override {
    if (NumParts(response_) == 0) return true;
    grpc::WriteOptions options;
    if (last) {
      // The last write ends when the client's window has taken everything: the end of the call, which nobody
      // watches, then has to wait for nothing.
      options.set_write_through();
      FillUsage(call_->request(), response_.mutable_usage());
    }
    return Write(options);
  }

 protected:
  virtual void AddPart(ChoiceUpdate update) = 0;
  // How many parts a response may have.
  virtual int MaxParts() const = 0;

  GenerateCall* const call_;
  Response response_;

 private:
  bool Write(const grpc::WriteOptions& options) {
    response_.set_request_id(call_->params().response_id);
    const bool written = call_->Write([&] { return writer_->Write(response_, options); });
    response_.Clear();
    return written;
  }

  grpc::ServerWriter<Response>* const writer_;
};

class DeltaWriter : public PartsWriter<v1::GenerateResponse> {
 public:
  using PartsWriter::PartsWriter;

 private:
  void AddPart(ChoiceUpdate update) override {
    FillResponse(*call_->model().tokenizer, call_->params(), update, &response_);
  }
  int MaxParts() const override { return kMaxDeltas; }
};

class EmbeddingWriter : public PartsWriter<v1::EmbedResponse> {
 public:
  using PartsWriter::PartsWriter;

 private:
  void AddPart(ChoiceUpdate update) override {
    const std::vector<float> numbers =
        FinishEmbedding(*call_->params().embedding, std::move(update.delta.pooled));
    v1::Embedding* embedding = response_.add_embeddings();
    embedding->set_index(update.index);
    embedding->mutable_values()->Add(numbers.begin(), numbers.end());
  }
  int MaxParts() const override {
    const int64_t numbers = response_.embeddings().empty() ? 1 : response_.embeddings(0).values_size();
    const int64_t bytes = std::max<int64_t>(1, numbers) * int64_t{sizeof(float)};
    return static_cast<int>(std::max<int64_t>(1, kMaxEmbeddingBytes / bytes));
  }
};

// The writer of a method, by the type of its responses.
template <typename Response>
using WriterOf =
    std::conditional_t<std::is_same_v<Response, v1::EmbedResponse>, EmbeddingWriter, DeltaWriter>;

}  // namespace

InferenceServiceImpl::InferenceServiceImpl(const ModelTable* models, std::shared_ptr<Metrics> metrics,
                                           ApiKeys api_keys, const ApiLimits& limits,
                                           GenerateCalls* generate_calls)
    : models_(models),
      metrics_(std::move(metrics)),
      api_keys_(std::move(api_keys)),
      limits_(limits),
      generate_calls_(generate_calls) {}

grpc::Status InferenceServiceImpl::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                            grpc::ServerWriter<v1::GenerateResponse>* writer) {
  return generate_calls_->Record(
      context, "Generate", v1::InferenceService::service_full_name(),
      [&](RequestRecord* record) { return Admit(context, *request, writer, record); });
}

grpc::Status InferenceServiceImpl::Embed(grpc::ServerContext* context, const v1::EmbedRequest* request,
                                         grpc::ServerWriter<v1::EmbedResponse>* writer) {
  return generate_calls_->Record(
      context, "Embed", v1::InferenceService::service_full_name(),
      [&](RequestRecord* record) { return Admit(context, *request, writer, record); });
}

template <typename Request, typename Response>
grpc::Status InferenceServiceImpl::Admit(grpc::ServerContext* context, const Request& request,
                                         grpc::ServerWriter<Response>* writer, RequestRecord* record) {
  const CallSlots::Call open(&generate_calls_->slots);
  if (!open.fits()) {
    metrics_->OnRejected("too_many_calls");
    return TooManyCalls();
  }
  if (grpc::Status status = CheckKey(*context, api_keys_); !status.ok()) return status;
  try {
    return Serve(context, request, writer, record);
  } catch (const std::exception&) {
    return {grpc::StatusCode::INTERNAL, "internal error"};
  }
}

template <typename Request, typename Response>
grpc::Status InferenceServiceImpl::Serve(grpc::ServerContext* context, const Request& request,
                                         grpc::ServerWriter<Response>* writer, RequestRecord* record) {
  SharedModel model;
  GenerateParams params;
  grpc::Status status = OpenRequest(*context, request, *models_, metrics_.get(), limits_, &model, &params);
  if (!status.ok()) return status;
  GenerateCall call(context, std::move(model), std::move(params), limits_, generate_calls_->write_watch);
  if (status = call.Start(); !status.ok()) return status;
  WriterOf<Response> responses(&call, writer);
  return call.Run(&generate_calls_->held_responses, "best_of", &responses, record);
}

grpc::Status InferenceServiceImpl::ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                                              v1::ListModelsResponse* response) {
  if (grpc::Status status = CheckKey(*context, api_keys_); !status.ok()) return status;
  const std::vector<SharedModel> models = models_->All();
  if (models.empty()) return LoadingStatus(*models_);
  for (const SharedModel& model : models) {
    const auto add = [&](const std::string& id) {
      v1::ModelCard* card = response->add_models();
      card->set_id(id);
      card->set_max_model_len(model->engine->max_model_len());
      card->set_vocab_size(model->config.vocab_size);
      if (id != model->name) card->set_parent(model->name);
    };
    add(model->name);
    if (model->adapters == nullptr) continue;
    for (const AdapterCard& adapter : model->adapters->List()) add(adapter.name);
  }
  return grpc::Status::OK;
}

}  // namespace somnus
