#include "worker/runner/batch_runner.h"

#include <algorithm>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "base/status_macros.h"
#include "worker/runner/self_check.h"
#include "worker/runner/trace_range.h"

namespace somnus {

BatchRunner::BatchRunner(const ModelRunnerOptions& options, RankModel* model, const BatchState* state,
                         Device* device, Communicator* communicator)
    : device_(*device),
      communicator_(*communicator),
      model_(*model),
      state_(*state),
      arrays_(state->limits(), &inputs_),
      graphs_(options, device, communicator),
      sampler_(state->limits(), model->logit_rows(), &inputs_, &results_),
      prompt_scorer_(model->logit_rows()),
      row_pooler_(state->limits().max_num_seqs, model->config().embedding_dim),
      stages_(options.pipeline, device, communicator),
      expert_load_(options, &model->config(), &model->shards()) {
  arrays_.Bind(device);
}

void BatchRunner::Carve(Carver* carver) {
  inputs_.Carve(carver);
  results_.Carve(carver);
  side_.Carve(carver, device_);
  prompt_scorer_.Carve(carver);
  row_pooler_.Carve(carver);
  arrays_.Carve(carver);
  sampler_.Carve(carver, device_);
  expert_load_.Carve(carver);
}

absl::Status BatchRunner::Bind() {
  RETURN_IF_ERROR(inputs_.Bind(&device_));
  RETURN_IF_ERROR(results_.Bind(&device_));
  RETURN_IF_ERROR(side_.Bind(&device_));
  RETURN_IF_ERROR(prompt_scorer_.Bind(&device_));
  RETURN_IF_ERROR(row_pooler_.Bind(&device_));
  RETURN_IF_ERROR(stages_.Bind());
  RETURN_IF_ERROR(expert_load_.Bind(&device_));
  model_.CountExperts(expert_load_.device());
  return sampler_.Bind(&device_);
}

absl::Status BatchRunner::Run(const v1::StepRequest& request, StepOutcome* outcome) {
  inputs_.Turn();
  results_.Turn();
  const size_t num_seqs = state_.scheduled().size();
  const bool decodes_only = state_.num_scheduled_tokens() == static_cast<int32_t>(num_seqs);
  const int32_t graph_size = decodes_only ? graphs_.PaddedSize(static_cast<int64_t>(num_seqs)) : 0;
  RETURN_IF_ERROR(QueueInputs(graph_size, outcome->reports_tokens, request.awaits_masks()));
  ASSIGN_OR_RETURN(const TensorView hidden, RunForward(graph_size));
  outcome->experts = expert_load_.Download();
  return model_.shards().last_stage ? RunHead(request, hidden, outcome) : MarkDone(outcome);
}

absl::Status BatchRunner::RunHead(const v1::StepRequest& request, const TensorView& hidden,
                                  StepOutcome* outcome) {
  RETURN_IF_ERROR(ScorePrompts(hidden, outcome->reports_tokens ? &outcome->reply : nullptr));
  if (outcome->reports_tokens) {  // the rows are whole, and the same, on every rank
    ASSIGN_OR_RETURN(outcome->pooled, row_pooler_.Run(hidden, arrays_.pooling_parts(), state_, &side_));
  }
  if (request.awaits_masks()) RETURN_IF_ERROR(AwaitMasks(request));
  RETURN_IF_ERROR(SampleTokens(hidden, request.awaits_masks()));
  results_.Download(sampler_.results_bytes());
  RETURN_IF_ERROR(MarkDone(outcome));
  outcome->sampled = sampler_.TakeResults();
  return absl::OkStatus();
}

absl::Status BatchRunner::QueueInputs(int32_t graph_size, bool logprobs, bool awaits_masks) {
  const TraceRange range("inputs");
  arrays_.Build(state_, graph_size);
  const bool samples = model_.shards().last_stage;
  if (samples) sampler_.Build(arrays_.sample_rows(), state_, logprobs, awaits_masks);
  inputs_.Upload(inputs_.bytes());
  RETURN_IF_ERROR(arrays_.Queue(state_, &side_));
  return samples ? sampler_.QueueCounts(state_, &side_) : absl::OkStatus();
}

absl::Status BatchRunner::MarkDone(StepOutcome* outcome) {
  ASSIGN_OR_RETURN(outcome->done, device_.CreateEvent());
  outcome->done->Record();
  return absl::OkStatus();
}

absl::StatusOr<TensorView> BatchRunner::RunForward(int32_t graph_size) {
  const int64_t num_tokens = arrays_.Inputs().batch.num_tokens;
  RETURN_IF_ERROR(stages_.Receive(model_.residual(num_tokens)));
  const TraceRange range("forward");
  TensorView hidden;
  if (graph_size > 0) {
    hidden = graphs_.Launch(graph_size);
  } else {
    ASSIGN_OR_RETURN(hidden, model_.Forward(arrays_.QueueInputs()));
  }
  RETURN_IF_ERROR(stages_.Send(model_.residual(num_tokens)));
  return hidden;
}

absl::Status BatchRunner::ScorePrompts(const TensorView& hidden, v1::StepReply* reply) {
  const absl::Span<const LogitRow> rows = arrays_.prompt_rows();
  LogitsHead& head = model_.head();
  std::vector<int32_t> indices;
  for (size_t begin = 0; begin < rows.size(); begin += head.max_rows()) {
    const absl::Span<const LogitRow> piece = rows.subspan(begin, head.max_rows());
    indices.clear();
    for (const LogitRow& row : piece) indices.push_back(row.row);
    const int64_t count = static_cast<int64_t>(piece.size());
    ASSIGN_OR_RETURN(const int32_t* staged, side_.Stage(indices.data(), count));
    ASSIGN_OR_RETURN(const TensorView logits, head.Logits(hidden, {staged, count, false}));
    if (reply != nullptr) RETURN_IF_ERROR(prompt_scorer_.Score(logits, piece, state_, &side_, reply));
  }
  return absl::OkStatus();
}

absl::Status BatchRunner::AwaitMasks(const v1::StepRequest& request) {
  if (!model_.reports()) return absl::OkStatus();
  if (request.has_masks()) return sampler_.SetMasks(request.masks());
  if (mask_source_ == nullptr) return absl::InvalidArgumentError("the step awaits masks, which cannot come");
  const TraceRange range("masks");
  ASSIGN_OR_RETURN(const v1::StepMasks masks,
                   mask_source_->AwaitMasks(request.group_epoch(), request.step_id()));
  return sampler_.SetMasks(masks);
}

absl::Status BatchRunner::SampleTokens(const TensorView& hidden, bool masked) {
  const TraceRange range("sample");
  const int64_t num_rows = static_cast<int64_t>(arrays_.sample_rows().size());
  if (num_rows == 0) return absl::OkStatus();
  LogitsHead& head = model_.head();
  // A decode batch samples every row in order, each once: no copy.
  const bool all = state_.forked().empty() && arrays_.sample_rows().back().row == num_rows - 1;
  for (int64_t first = 0; first < num_rows; first += head.max_rows()) {
    const int64_t count = std::min(head.max_rows(), num_rows - first);
    const LogitRows rows = {arrays_.sample_row_indices() + first, count, all && count == num_rows};
    if (sampler_.plain_greedy()) {
      RETURN_IF_ERROR(head.ArgMaxTokens(hidden, rows, sampler_.tokens() + first));
    } else {
      ASSIGN_OR_RETURN(const TensorView logits, head.Logits(hidden, rows));
      RETURN_IF_ERROR(sampler_.QueueSample(logits, first, state_, &side_));
      if (masked) RETURN_IF_ERROR(head.ShareTokens(sampler_.tokens() + first, count, &side_));
    }
  }
  sampler_.QueueFinish(arrays_.sample_slots(), arrays_.last_tokens());
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> BatchRunner::SelfCheck() {
  RETURN_IF_ERROR(device_.Synchronize());  // the inputs' host buffers are free
  device_.BeginStep();
  const absl::Cleanup end_step = [this] { device_.EndStep(); };
  inputs_.Turn();
  arrays_.BuildOnNullBlock(SelfCheckPrompt(state_.limits()));
  inputs_.Upload(inputs_.bytes());
  arrays_.QueueNullBlock();
  ASSIGN_OR_RETURN(const TensorView hidden, RunForward(/*graph_size=*/0));
  if (!model_.shards().last_stage) {
    RETURN_IF_ERROR(device_.Synchronize());
    RETURN_IF_ERROR(communicator_.status());
    return 0;
  }
  ASSIGN_OR_RETURN(const TensorView logits,
                   model_.head().Logits(hidden, {.count = hidden.rows, .all = true}));
  std::vector<float> values(static_cast<size_t>(logits.rows * logits.cols));
  for (int64_t row = 0; row < logits.rows; ++row) {
    device_.CopyToHost(values.data() + row * logits.cols, logits.row<float>(row),
                       logits.cols * static_cast<int64_t>(sizeof(float)));
  }
  RETURN_IF_ERROR(device_.Synchronize());
  RETURN_IF_ERROR(communicator_.status());
  return model_.reports() ? FingerprintOf(values) : 0;
}

absl::StatusOr<GraphReport> BatchRunner::CaptureGraphs() {
  const auto prepare = [this](int32_t size, bool runs) -> absl::Status {
    if (runs) inputs_.Turn();
    arrays_.Build(state_, size);
    if (runs) inputs_.Upload(inputs_.bytes());
    return absl::OkStatus();
  };
  return graphs_.Capture(prepare, [this] { return model_.Forward(arrays_.QueueInputs()); });
}

}  // namespace somnus
