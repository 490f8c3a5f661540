#include "worker/runner/draft_model.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/log.h"
#include "base/memory_tags.h"
#include "base/status_macros.h"
#include "worker/runner/model_sizes.h"

namespace somnus {
namespace {

absl::Status OfDraftModel(const ModelRunnerOptions& options, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat("--draft-model: ", options.draft_model_path, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDraft(const ModelRunnerOptions& options) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened =
      Checkpoint::Open(options.draft_model_path, options.draft_format);
  if (opened.ok() || options.read_weights) return opened;
  // As for a group with random weights: for the layout config.json is enough.
  absl::StatusOr<std::unique_ptr<Checkpoint>> dummy =
      Checkpoint::Open(options.draft_model_path, LoadFormat::kDummy);
  return dummy.ok() ? std::move(dummy) : std::move(opened);
}

// --quantization is about the large model.
ModelRunnerOptions WithoutQuantization(ModelRunnerOptions options) {
  options.quantize = std::nullopt;
  return options;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DraftModel>> DraftModel::Load(const ModelRunnerOptions& options,
                                                             const BatchLimits& limits, Device* device,
                                                             Communicator* communicator,
                                                             SleepableAllocator* allocator) {
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenDraft(options);
  RETURN_IF_ERROR(OfDraftModel(options, checkpoint.status()));
  std::unique_ptr<DraftModel> model(
      new DraftModel(**checkpoint, options, limits, device, communicator, allocator));
  RETURN_IF_ERROR(OfDraftModel(options, model->Init(**checkpoint)));
  return model;
}

DraftModel::DraftModel(const Checkpoint& checkpoint, const ModelRunnerOptions& options,
                       const BatchLimits& limits, Device* device, Communicator* communicator,
                       SleepableAllocator* allocator)
    : options_(WithoutQuantization(options)),
      limits_(limits),
      device_(device),
      communicator_(communicator),
      allocator_(allocator),
      model_(checkpoint, options_, device, communicator, allocator, /*min_block_bytes=*/0),
      missing_(limits),
      guesses_(limits, options.num_speculative_tokens) {}

DraftModel::~DraftModel() {
  device_->Synchronize().IgnoreError();  // nothing may run on memory that is released
  if (workspace_region_ != nullptr) allocator_->Free(workspace_region_).IgnoreError();
}

absl::Status DraftModel::CheckVocabulary(const Checkpoint& checkpoint) const {
  if (checkpoint.config().vocab_size == limits_.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("it has a vocabulary of ", checkpoint.config().vocab_size,
                                                 " tokens, the model one of ", limits_.vocab_size));
}

absl::Status DraftModel::Init(const Checkpoint& checkpoint) {
  RETURN_IF_ERROR(CheckModelRuns(options_, model_.config()));
  RETURN_IF_ERROR(CheckVocabulary(checkpoint));
  RETURN_IF_ERROR(model_.Allocate(checkpoint));
  if (communicator_->rank() == 0) LogInfo("draft model {}: {}", model_.config().name, weight_types());
  RETURN_IF_ERROR(model_.weights().Read(checkpoint, nullptr));
  ASSIGN_OR_RETURN(workspace_region_, allocator_->Allocate(kWorkspaceTag, CarveWorkspace(nullptr)));
  CarveWorkspace(workspace_region_);
  return absl::OkStatus();
}

absl::Status DraftModel::ReadWeights() {
  const absl::StatusOr<std::unique_ptr<Checkpoint>> checkpoint = OpenDraft(options_);
  RETURN_IF_ERROR(OfDraftModel(options_, checkpoint.status()));
  RETURN_IF_ERROR(OfDraftModel(options_, CheckVocabulary(**checkpoint)));
  absl::StatusOr<WeightPlan> plan = model_.weights().Plan(**checkpoint);
  RETURN_IF_ERROR(OfDraftModel(options_, plan.status()));
  if (!model_.weights().Fits(*plan)) {
    return OfDraftModel(options_, absl::FailedPreconditionError(absl::StrCat(
                                      "is not the model that was loaded, ", model_.config().name)));
  }
  return OfDraftModel(options_, model_.weights().Overwrite(*std::move(plan), **checkpoint, nullptr));
}

int64_t DraftModel::CarveWorkspace(void* base) {
  Carver carver(base);
  guesses_.Carve(&carver);
  missing_.Carve(&carver);
  model_.Carve(&carver);
  block_tables_ = carver.Take<int32_t>(int64_t{limits_.max_num_seqs} * limits_.max_blocks_per_seq());
  proposed_ = carver.Take<int32_t>(int64_t{limits_.max_num_seqs} * options_.num_speculative_tokens);
  return carver.bytes();
}

absl::Status DraftModel::BindWorkspace() {
  RETURN_IF_ERROR(guesses_.Bind(device_));
  RETURN_IF_ERROR(missing_.Bind(device_));
  return model_.FillTables();
}

void DraftModel::GatherTables(const int32_t* slot_tables, const int32_t* slots, const int32_t* context_len,
                              int64_t num_seqs) {
  GatherBlockTables(*device_, slot_tables, slots, context_len, num_seqs, limits_.max_blocks_per_seq(),
                    limits_.block_size, block_tables_);
}

absl::StatusOr<TensorView> DraftModel::Forward(StepInput input) {
  input.batch.block_tables = block_tables_;
  input.batch.max_blocks_per_seq = limits_.max_blocks_per_seq();
  return model_.Forward(input);
}

absl::Status DraftModel::CatchUp(std::vector<MissingTokens> pieces, const int32_t* slot_tables) {
  RETURN_IF_ERROR(device_->Synchronize());  // the copy of the last pass's inputs has ended
  const auto rest = std::stable_partition(
      pieces.begin(), pieces.end(), [](const MissingTokens& piece) { return piece.token_ids.size() == 1; });
  const StepInput input = missing_.Upload(pieces, rest - pieces.begin());
  GatherTables(slot_tables, missing_.slots(), input.batch.context_len, input.batch.num_seqs);
  return Forward(input).status();
}

absl::StatusOr<std::vector<std::vector<int32_t>>> DraftModel::Propose(
    absl::Span<const ProposingSlot> sequences, const int32_t* slot_tables) {
  std::vector<size_t> order(sequences.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return sequences[a].count > sequences[b].count; });
  guesses_.Upload(sequences, order);
  GatherTables(slot_tables, guesses_.slots(), guesses_.last_context(), static_cast<int64_t>(order.size()));
  const int32_t most = sequences.empty() ? 0 : sequences[order[0]].count;
  for (int32_t guess = 0; guess < most; ++guess) {
    const auto end =
        std::find_if(order.begin(), order.end(), [&](size_t i) { return sequences[i].count <= guess; });
    RETURN_IF_ERROR(ProposeNext(guess, end - order.begin()));
  }
  return ReadProposals(sequences, order, most);
}

absl::StatusOr<std::vector<std::vector<int32_t>>> DraftModel::ReadProposals(
    absl::Span<const ProposingSlot> sequences, absl::Span<const size_t> order, int32_t most) {
  std::vector<int32_t> rows(static_cast<size_t>(most) * limits_.max_num_seqs);
  device_->CopyToHost(rows.data(), proposed_, static_cast<int64_t>(rows.size() * sizeof(int32_t)));
  RETURN_IF_ERROR(device_->Synchronize());
  RETURN_IF_ERROR(communicator_->status());
  std::vector<std::vector<int32_t>> proposals(sequences.size());
  for (size_t i = 0; i < order.size(); ++i) {
    for (int32_t guess = 0; guess < sequences[order[i]].count; ++guess) {
      const int32_t token = rows[static_cast<size_t>(guess) * limits_.max_num_seqs + i];
      if (token < 0 || token >= limits_.vocab_size) break;  // the logits are not finite
      proposals[order[i]].push_back(token);
    }
  }
  return proposals;
}

absl::Status DraftModel::ProposeNext(int32_t index, int64_t count) {
  const int64_t first_row = int64_t{index} * limits_.max_num_seqs;
  // A guess that is no token, because logits were not finite, is embedded as zeros.
  const int32_t* token_ids = index == 0 ? nullptr : proposed_ + first_row - limits_.max_num_seqs;
  ASSIGN_OR_RETURN(const TensorView hidden, Forward(guesses_.Pass(index, count, token_ids)));
  LogitsHead& head = model_.head();
  for (int64_t begin = 0; begin < count; begin += head.max_rows()) {
    const int64_t rows = std::min(head.max_rows(), count - begin);
    RETURN_IF_ERROR(head.ArgMaxTokens(hidden, {guesses_.row_numbers() + begin, rows, rows == count},
                                      proposed_ + first_row + begin));
  }
  return absl::OkStatus();
}

}  // namespace somnus
