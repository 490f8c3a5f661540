#include "tests/fakes/fake_worker.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "proto/limits.h"

namespace somnus {
namespace {

uint64_t Mix(uint64_t state, uint64_t value) {
  uint64_t x = state * 0x9E3779B97F4A7C15ull + value + 0x632BE59BD9B4E019ull;
  x ^= x >> 30;
  x *= 0xBF58476D1CE4E5B9ull;
  x ^= x >> 27;
  x *= 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

int32_t NextToken(uint64_t prefix, int32_t vocab_size) {
  return static_cast<int32_t>(Mix(prefix, 77) % vocab_size);
}

float Logprob(uint64_t prefix, int32_t token) {
  return -static_cast<float>(Mix(prefix, static_cast<uint64_t>(token)) % 10000) / 1000.0f;
}

// As in a worker's report; all logits except those of some random tokens are far below.
v1::StepLogprobs Candidates(uint64_t prefix, int32_t count, int32_t vocab_size) {
  std::map<int32_t, float> by_token;
  for (uint64_t i = 0; by_token.size() < static_cast<size_t>(std::min(count, vocab_size)); ++i) {
    const auto token = static_cast<int32_t>(Mix(prefix, 1000 + i) % vocab_size);
    by_token.emplace(token, Logprob(prefix, token));
  }
  std::vector<std::pair<int32_t, float>> sorted(by_token.begin(), by_token.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](auto& a, auto& b) { return a.second > b.second; });
  v1::StepLogprobs logprobs;
  const int32_t next = NextToken(prefix, vocab_size);
  logprobs.add_token_ids(next);
  logprobs.add_logprobs(Logprob(prefix, next));
  logprobs.set_rank(1);
  for (const auto& [token, logprob] : sorted) {
    logprobs.add_token_ids(token);
    logprobs.add_logprobs(logprob);
  }
  return logprobs;
}

// The place of a token that another stage has sampled.
constexpr int32_t kUnknownToken = -1;

// The state that stands for not-a-number; in practice no hash has this value.
constexpr uint64_t kNan = 0x4E614E4E614E4E61ull;

void AddSlotError(int32_t slot, const absl::Status& status, v1::StepReply* reply) {
  v1::SlotError* error = reply->add_slot_errors();
  error->set_slot(slot);
  error->set_code(status.raw_code());
  error->set_message(std::string(status.message()));
}

absl::Status Broken(const std::string& what) {
  return absl::InternalError(absl::StrCat("fake worker: ", what));
}

// Whole and small, so that the order of a sum does not matter.
double PooledNumber(uint64_t state) { return static_cast<double>(state % 1000); }

}  // namespace

std::vector<int32_t> FakeWorker::ReferenceTokens(std::vector<int32_t> tokens, int32_t count,
                                                 int32_t vocab_size, uint64_t weights) {
  uint64_t state = weights;
  for (int32_t token : tokens) state = Mix(state, static_cast<uint64_t>(token));
  std::vector<int32_t> answer;
  for (int32_t i = 0; i < count; ++i) {
    answer.push_back(NextToken(state, vocab_size));
    state = Mix(state, static_cast<uint64_t>(answer.back()));
  }
  return answer;
}

v1::StepLogprobs FakeWorker::ReferenceCandidates(const std::vector<int32_t>& tokens, int32_t count,
                                                 int32_t vocab_size) {
  uint64_t state = 0;
  for (const int32_t token : tokens) state = Mix(state, static_cast<uint64_t>(token));
  return Candidates(state, count, vocab_size);
}

float FakeWorker::ReferenceLogprob(const std::vector<int32_t>& tokens, int32_t position) {
  uint64_t state = 0;
  for (int32_t i = 0; i < position; ++i) state = Mix(state, static_cast<uint64_t>(tokens[i]));
  return Logprob(state, tokens[position]);
}

std::vector<float> FakeWorker::ReferencePooled(const std::vector<int32_t>& tokens, v1::StepPooling pooling) {
  uint64_t state = 0;
  double first = 0, sum = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    state = Mix(state, static_cast<uint64_t>(tokens[i]));
    sum += PooledNumber(state);
    if (i == 0) first = sum;
  }
  if (pooling == v1::STEP_POOLING_MEAN) return {static_cast<float>(sum), static_cast<float>(tokens.size())};
  return {static_cast<float>(pooling == v1::STEP_POOLING_CLS ? first : PooledNumber(state)), 1};
}

absl::StatusOr<v1::StepReply> FakeWorker::ExecuteStage(const v1::StepRequest& request, const Place& place,
                                                       FakeStream received, FakeStream* sent) {
  place_ = place;
  received_ = std::move(received);
  absl::StatusOr<v1::StepReply> reply = Execute(request);
  *sent = std::move(sent_);
  if (!place.first && received_.size() != sent->size())
    return Broken(
        absl::StrCat("the stage before has computed ", received_.size(), " tokens, this one ", sent->size()));
  return reply;
}

absl::StatusOr<v1::StepReply> FakeWorker::Execute(const v1::StepRequest& request) {
  sent_.clear();
  if (last_step_id_ != 0 && request.step_id() != last_step_id_ + 1) return Broken("step ids must count up");
  last_step_id_ = request.step_id();
  v1::StepReply reply;
  reply.set_step_id(request.step_id());
  masks_.clear();
  for (const v1::SlotMask& mask : request.masks().masks()) masks_[mask.slot()] = mask.allowed();
  RETURN_IF_ERROR(Swap(request, &reply));
  reply.set_kv_host_bytes(static_cast<int64_t>(swapped_.size()));
  RETURN_IF_ERROR(Branch(request));
  for (int32_t slot : request.freed_slots()) {
    if (slots_.erase(slot) == 0) return Broken(absl::StrCat("freed slot ", slot, " was not in use"));
  }
  for (const v1::BlockCopy& copy : request.copies()) {
    for (const int32_t block : {copy.src(), copy.dst()}) {
      if (block <= 0 || block >= num_blocks_) return Broken(absl::StrCat("a copy names block ", block));
    }
    SetBlock(copy.dst(), Block(copy.src()));
  }
  for (const v1::NewSequence& sequence : request.new_sequences())
    RETURN_IF_ERROR(AddSequence(sequence, request));
  int64_t tokens = 0;
  std::set<int32_t> seen;
  for (const v1::ScheduledSequence& scheduled : request.sequences()) {
    tokens += scheduled.num_tokens();
    if (!seen.insert(scheduled.slot()).second) return Broken("a slot is scheduled twice");
    RETURN_IF_ERROR(Run(scheduled, &reply));
  }
  for (const v1::SequenceFork& fork : request.forks()) RETURN_IF_ERROR(Fork(fork, seen, &reply));
  if (tokens > options_.max_num_batched_tokens) return Broken("the step is over its token budget");
  return reply;
}

// Swapped-out blocks stay on the host, so that several steps may swap them in.
absl::Status FakeWorker::Swap(const v1::StepRequest& request, v1::StepReply* reply) {
  if (!request.swap_outs().empty() && !request.swap_ins().empty()) return Broken("swaps in both directions");
  const bool has_no_room =
      std::any_of(request.swap_outs().begin(), request.swap_outs().end(),
                  [&](const v1::BlockCopy& swap) { return swap.dst() >= options_.num_host_blocks; });
  if (has_no_room || (refuses_swaps_ && !request.swap_outs().empty())) {
    AddSlotError(kSwapsSlot, absl::Status(refusal_, "no memory for swapped blocks"), reply);
    return absl::OkStatus();
  }
  for (const v1::BlockCopy& swap : request.swap_outs()) {
    if (swap.src() <= 0 || swap.src() >= num_blocks_) return Broken(absl::StrCat("swaps out ", swap.src()));
    swapped_[swap.dst()] = Block(swap.src());
    ++num_swapped_out_;
  }
  for (const v1::BlockCopy& swap : request.swap_ins()) {
    const auto host = swapped_.find(swap.src());
    if (host == swapped_.end()) return Broken(absl::StrCat("nothing was swapped out to ", swap.src()));
    if (swap.dst() <= 0 || swap.dst() >= num_blocks_) return Broken(absl::StrCat("swaps in ", swap.dst()));
    SetBlock(swap.dst(), host->second);
    ++num_swapped_in_;
  }
  return absl::OkStatus();
}

absl::Status FakeWorker::Branch(const v1::StepRequest& request) {
  std::set<int32_t> with_input;
  for (const v1::ScheduledSequence& scheduled : request.sequences()) {
    if (scheduled.input_token_ids_size() > 0) with_input.insert(scheduled.slot());
  }
  std::map<int32_t, Slot> branches;
  for (const v1::SequenceFork& branch : request.branches()) {
    const auto source = slots_.find(branch.source_slot());
    if (source == slots_.end()) return Broken(absl::StrCat("slot ", branch.source_slot(), " is no source"));
    if (branch.slot() < 0 || branch.slot() >= options_.max_num_seqs) return Broken("slot out of range");
    if (!with_input.contains(branch.slot()))
      return Broken(absl::StrCat("branch ", branch.slot(), " has no input"));
    Slot slot = source->second;
    slot.blocks.assign(branch.block_ids().begin(), branch.block_ids().end());
    if (!branches.emplace(branch.slot(), std::move(slot)).second) return Broken("a slot is branched twice");
  }
  for (auto& [index, slot] : branches) slots_[index] = std::move(slot);
  return absl::OkStatus();
}

absl::Status FakeWorker::ReplaceTokens(const v1::ScheduledSequence& scheduled, Slot* slot) const {
  const int64_t start = scheduled.start_position();
  if (scheduled.num_draft_tokens() < 0 || scheduled.num_draft_tokens() >= scheduled.num_tokens())
    return Broken("a draft is no part of what is computed");
  if (scheduled.input_token_ids_size() != scheduled.num_tokens())
    return Broken("num_tokens is another number");
  if (start < slot->num_prompt || start > slot->num_computed) return Broken("input tokens leave a gap");
  slot->tokens.resize(start);
  slot->tokens.insert(slot->tokens.end(), scheduled.input_token_ids().begin(),
                      scheduled.input_token_ids().end());
  slot->num_computed = start;
  const auto num_blocks = static_cast<size_t>((start + options_.block_size - 1) / options_.block_size);
  if (slot->num_drafts > 0 && slot->blocks.size() > num_blocks) slot->blocks.resize(num_blocks);
  slot->num_drafts = scheduled.num_draft_tokens();
  return absl::OkStatus();
}

void FakeWorker::DropBatch() {
  last_step_id_ = 0;
  slots_.clear();
  swapped_.clear();
}

void FakeWorker::Replace() {
  DropBatch();
  host_.clear();
  kept_.clear();
  for (size_t i = 0; i < cache_.size(); ++i) cache_[i] = Mix(~uint64_t{0}, i);
}

absl::Status FakeWorker::Sleep() {
  std::fill(cache_.begin(), cache_.end(), 0xDEADBEEFull);
  if (!slots_.empty()) return Broken("slots in use at sleep");
  return absl::OkStatus();
}

void FakeWorker::CopyToHost(const BlockPairs& blocks, const std::vector<int32_t>& swapped) {
  kept_ = blocks;
  host_.clear();
  const std::set<int32_t> wanted(swapped.begin(), swapped.end());
  std::erase_if(swapped_, [&](const auto& host) { return !wanted.contains(host.first); });
  for (const auto& [device, host] : blocks) host_[host] = Block(device);
}

absl::Status FakeWorker::CopyFromHost(const BlockPairs& blocks) {
  if (blocks.empty()) return absl::OkStatus();  // nothing is wanted any more
  if (blocks != kept_) return Broken("a wake-up names other blocks than the sleep");
  for (const auto& [device, host] : blocks) SetBlock(device, host_.at(host));
  return absl::OkStatus();
}

std::vector<uint64_t> FakeWorker::Block(int32_t id) const {
  const auto begin = cache_.begin() + static_cast<int64_t>(id) * options_.block_size;
  return {begin, begin + options_.block_size};
}

void FakeWorker::SetBlock(int32_t id, const std::vector<uint64_t>& contents) {
  std::copy(contents.begin(), contents.end(),
            cache_.begin() + static_cast<int64_t>(id) * options_.block_size);
}

absl::Status FakeWorker::AddSequence(const v1::NewSequence& message, const v1::StepRequest& request) {
  if (message.slot() < 0 || message.slot() >= options_.max_num_seqs) return Broken("slot out of range");
  if (slots_.contains(message.slot())) return Broken(absl::StrCat("slot ", message.slot(), " is in use"));
  Slot slot;
  slot.tokens.assign(message.token_ids().begin(), message.token_ids().end());
  slot.num_prompt = message.num_prompt_tokens();
  slot.num_computed = message.num_computed_tokens();
  slot.blocks.assign(message.block_ids().begin(), message.block_ids().end());
  if (message.sampling_index() < 0 || message.sampling_index() >= request.samplings_size())
    return Broken("sampling_index out of range");
  slot.sampling = request.samplings(message.sampling_index());
  if (slot.num_computed < 0 || slot.num_computed >= static_cast<int64_t>(slot.tokens.size())) {
    return Broken(absl::StrCat("num_computed_tokens ", slot.num_computed, " of ", slot.tokens.size()));
  }
  slot.pooling = message.pooling();
  if (slot.pooling != v1::STEP_POOLING_NONE && slot.num_prompt != static_cast<int64_t>(slot.tokens.size()))
    return Broken("outputs of a sequence that pools");
  if (slot.pooling > v1::STEP_POOLING_LAST && slot.num_computed != 0)
    return Broken("the states of computed tokens cannot be pooled");
  slots_.emplace(message.slot(), std::move(slot));
  return absl::OkStatus();
}

void FakeWorker::Pool(int32_t index, int64_t position, uint64_t state, v1::StepReply* reply) {
  Slot& slot = slots_.at(index);
  const bool is_last = position + 1 == slot.num_prompt;
  const bool counts = slot.pooling == v1::STEP_POOLING_MEAN ||
                      (slot.pooling == v1::STEP_POOLING_CLS ? position == 0 : is_last);
  if (counts) {
    slot.pooled += PooledNumber(state);
    slot.pooled_nan |= state == kNan;
    ++slot.num_pooled;
  }
  if (!is_last) return;
  if (slot.pooled_nan)
    return AddSlotError(index, absl::InternalError("the states are not finite numbers"), reply);
  v1::PooledState* pooled = reply->add_pooled();
  pooled->set_slot(index);
  pooled->add_values(static_cast<float>(slot.pooled));
  pooled->add_values(static_cast<float>(slot.num_pooled));
}

absl::Status FakeWorker::Resize(int32_t num_blocks) {
  if (num_blocks < 2 || num_blocks > options_.num_blocks) return Broken(absl::StrCat(num_blocks, " blocks"));
  for (const auto& [id, slot] : slots_) {
    // Blocks that hold guesses alone, or that no later query attends, may have been given back by now.
    const auto certain = static_cast<size_t>(
        (static_cast<int64_t>(slot.tokens.size()) - slot.num_drafts + options_.block_size - 1) /
        options_.block_size);
    for (size_t i = 0; i < std::min(certain, slot.blocks.size()); ++i) {
      if (slot.blocks[i] >= num_blocks && !IsUnseen(static_cast<int64_t>(i), slot.num_computed))
        return Broken(absl::StrCat("slot ", id, " has block ", slot.blocks[i]));
    }
  }
  const int32_t first_lost = std::min(num_blocks, num_blocks_);
  std::fill(cache_.begin() + static_cast<std::ptrdiff_t>(first_lost) * options_.block_size, cache_.end(), 0);
  num_blocks_ = num_blocks;
  return absl::OkStatus();
}

absl::Status FakeWorker::CheckBlocks(const Slot& slot) const {
  for (size_t i = 0; i < slot.blocks.size(); ++i) {
    const int32_t block = slot.blocks[i];
    // A block that was given back may lie beyond the cache's present end.
    const bool existed = block >= 0 && block < options_.num_blocks;
    if (existed && IsUnseen(static_cast<int64_t>(i), slot.num_computed)) continue;
    if (block <= 0 || block >= num_blocks_) return Broken(absl::StrCat("block id ", block));
  }
  if (static_cast<int64_t>(slot.blocks.size()) * options_.block_size < slot.num_computed)
    return Broken("too few blocks");
  return absl::OkStatus();
}

absl::Status FakeWorker::CheckWindow(const Slot& slot, int64_t position) const {
  if (options_.window == 0) return absl::OkStatus();
  uint64_t state = weights_;
  for (int64_t p = 0; p < position; ++p) {
    state = Mix(state, static_cast<uint64_t>(slot.tokens[p]));
    if (p <= position - options_.window) continue;
    if (IsUnseen(p / options_.block_size, position) || slot.blocks[p / options_.block_size] == 0 ||
        cache_[CacheIndex(slot, p)] != state)
      return Broken(absl::StrCat("position ", position, " attends ", p, ", which the cache has not"));
  }
  return absl::OkStatus();
}

size_t FakeWorker::CacheIndex(const Slot& slot, int64_t position) const {
  return static_cast<size_t>(slot.blocks[position / options_.block_size]) * options_.block_size +
         static_cast<size_t>(position % options_.block_size);
}

uint64_t FakeWorker::NextState(uint64_t before, int32_t slot, int32_t token) const {
  auto nan = nan_steps_.find(last_step_id_);
  const bool is_nan =
      before == kNan || token == options_.nan_token || (nan != nan_steps_.end() && nan->second == slot);
  return is_nan ? kNan : Mix(before, static_cast<uint64_t>(token));
}

absl::Status FakeWorker::Run(const v1::ScheduledSequence& scheduled, v1::StepReply* reply) {
  auto it = slots_.find(scheduled.slot());
  if (it == slots_.end()) return Broken(absl::StrCat("slot ", scheduled.slot(), " is unknown"));
  Slot& slot = it->second;
  if (slot.sampling.temperature() < 0) {
    AddSlotError(scheduled.slot(), absl::InvalidArgumentError("temperature is negative"), reply);
    return absl::OkStatus();
  }
  const bool names_input = scheduled.input_token_ids_size() > 0;
  if (!names_input && (slot.num_drafts > 0 || scheduled.num_draft_tokens() != 0))
    return Broken("a draft without input tokens, or behind it");
  if (names_input) RETURN_IF_ERROR(ReplaceTokens(scheduled, &slot));
  slot.blocks.insert(slot.blocks.end(), scheduled.new_block_ids().begin(), scheduled.new_block_ids().end());
  const int64_t start = slot.num_computed;
  const int64_t end = start + scheduled.num_tokens();
  if (scheduled.num_tokens() < 1 || end > static_cast<int64_t>(slot.tokens.size()))
    return Broken("tokens beyond the sequence");
  slot.num_computed = end;
  RETURN_IF_ERROR(CheckBlocks(slot));
  RETURN_IF_ERROR(CheckWindow(slot, start));
  v1::PromptLogprobs* prompt_logprobs = nullptr;
  for (int64_t position = start; position < end; ++position) {
    const uint64_t before = position == 0 ? weights_ : cache_[CacheIndex(slot, position - 1)];
    ASSIGN_OR_RETURN(const uint64_t state, Compute(scheduled.slot(), position, before));
    cache_[CacheIndex(slot, position)] = state;
    ++num_computed_tokens_;
    if (slot.pooling != v1::STEP_POOLING_NONE) Pool(scheduled.slot(), position, state, reply);
    if (slot.sampling.num_prompt_logprobs() < 0 || position + 1 >= slot.num_prompt) continue;
    if (prompt_logprobs == nullptr) {
      prompt_logprobs = reply->add_prompt_logprobs();
      prompt_logprobs->set_slot(scheduled.slot());
    }
    v1::StepLogprobs* logprobs = prompt_logprobs->add_positions();
    logprobs->add_token_ids(slot.tokens[position + 1]);
    logprobs->add_logprobs(Logprob(state, slot.tokens[position + 1]));
  }
  const bool samples =
      end == static_cast<int64_t>(slot.tokens.size()) && slot.pooling == v1::STEP_POOLING_NONE;
  const int first_token = reply->tokens_size();
  if (slot.num_drafts > 0) {
    Check(scheduled, reply);
  } else if (samples) {
    Sample(scheduled.slot(), cache_[CacheIndex(slot, end - 1)], reply);
  }
  if (scheduled.num_proposals() == 0) return absl::OkStatus();
  if (!samples) return Broken("proposals of a slot that does not sample");
  return Propose(scheduled, first_token, reply);
}

absl::StatusOr<uint64_t> FakeWorker::Compute(int32_t slot, int64_t position, uint64_t before) {
  int32_t token = slots_.at(slot).tokens[position];
  const size_t index = sent_.size();
  if (!place_.first) {
    if (index >= received_.size()) return Broken("the stage before has computed fewer tokens");
    token = static_cast<int32_t>(received_[index].token);
  } else if (token == kUnknownToken) {
    return Broken(absl::StrCat("the first stage is not told token ", position, " of slot ", slot));
  }
  uint64_t state = NextState(before, slot, token);
  if (!place_.first && state != received_[index].state) state = Mix(state, received_[index].state);
  sent_.push_back({token, state});
  return state;
}

void FakeWorker::Check(const v1::ScheduledSequence& scheduled, v1::StepReply* reply) {
  if (!place_.last) return;
  const Slot slot = slots_.at(scheduled.slot());
  const int64_t end = slot.num_computed, first = end - 1 - scheduled.num_draft_tokens();
  num_draft_tokens_ += scheduled.num_draft_tokens();
  for (int64_t position = first; position < end; ++position) {
    const uint64_t state = cache_[CacheIndex(slot, position)];
    if (state == kNan && position > first) return;  // the next step finds the NaN again
    Sample(scheduled.slot(), state, reply);
    slots_.at(scheduled.slot()).tokens = slot.tokens;
    if (state == kNan || position + 1 == end) return;
    if (reply->tokens(reply->tokens_size() - 1).token_id() != slot.tokens[position + 1]) return;
  }
}

int32_t FakeWorker::ChooseToken(int32_t slot, uint64_t state) {
  const int32_t choice = NextToken(state, options_.vocab_size);
  const auto mask = masks_.find(slot);
  if (mask == masks_.end() || mask->second.empty()) return choice;
  const size_t bytes = (static_cast<size_t>(options_.vocab_size) + 31) / 32 * 4;
  const std::string allowed = mask->second.substr(0, bytes);
  mask->second.erase(0, bytes);
  for (int32_t i = 0; i < options_.vocab_size; ++i) {
    const int32_t id = (choice + i) % options_.vocab_size;
    if ((static_cast<unsigned char>(allowed[id / 8]) >> (id % 8)) & 1) return id;
  }
  return -1;
}

void FakeWorker::Sample(int32_t index, uint64_t state, v1::StepReply* reply) {
  Slot& slot = slots_.at(index);
  if (!place_.last) return slot.tokens.push_back(kUnknownToken);
  if (state == kNan) {
    AddSlotError(index, absl::InternalError("the logits are not finite numbers"), reply);
    slot.tokens.push_back(0);
    return;
  }
  const int32_t token = ChooseToken(index, state);
  if (token < 0) {
    AddSlotError(index, absl::OutOfRangeError("the mask leaves no token"), reply);
    slot.tokens.push_back(0);
    return;
  }
  v1::SampledToken* sampled = reply->add_tokens();
  sampled->set_slot(index);
  sampled->set_token_id(token);
  if (slot.sampling.num_logprobs() >= 0) {
    *sampled->mutable_logprobs() = Candidates(state, slot.sampling.num_logprobs(), options_.vocab_size);
  }
  slot.tokens.push_back(sampled->token_id());
}

absl::Status FakeWorker::Fork(const v1::SequenceFork& fork, const std::set<int32_t>& scheduled,
                              v1::StepReply* reply) {
  if (slots_.contains(fork.slot())) return Broken(absl::StrCat("slot ", fork.slot(), " is in use"));
  if (fork.slot() < 0 || fork.slot() >= options_.max_num_seqs) return Broken("slot out of range");
  if (!scheduled.contains(fork.source_slot())) return Broken("a fork of a slot that is not scheduled");
  const Slot& source = slots_.at(fork.source_slot());
  if (source.sampling.temperature() < 0) {
    slots_.emplace(fork.slot(), Slot(source));
    AddSlotError(fork.slot(), absl::InvalidArgumentError("temperature is negative"), reply);
    return absl::OkStatus();
  }
  if (static_cast<int64_t>(source.tokens.size()) != source.num_computed + 1 || source.num_drafts > 0)
    return Broken("a fork of a slot that does not sample");
  const uint64_t state = cache_[CacheIndex(source, source.num_computed - 1)];
  Slot slot = source;
  slot.tokens.pop_back();
  slot.blocks.assign(fork.block_ids().begin(), fork.block_ids().end());
  RETURN_IF_ERROR(CheckBlocks(slot));
  slots_.emplace(fork.slot(), std::move(slot));
  Sample(fork.slot(), state, reply);
  return absl::OkStatus();
}

}  // namespace somnus
