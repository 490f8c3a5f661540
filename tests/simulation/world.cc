#include "tests/simulation/world.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/emulator/fiber.h"

namespace somnus::simulation {
namespace {

using cuda_emulated::emulator::Fiber;

World* the_world = nullptr;

// More without any time passing is a thread that waits in a loop.
constexpr int64_t kMaxResumesAtOneTime = 2'000'000;
constexpr double kYieldProbability = 0.02;
constexpr uint64_t kFnvPrime = 0x100000001B3;

}  // namespace

struct World::Process {
  int pid = 0;
  std::string name;
  bool alive = true;
  bool stopped = false;
  std::string end;
  std::vector<Thread*> parked;  // ready threads of a stopped process
  std::vector<std::function<void()>> on_end;
};

struct World::Thread {
  uint64_t number = 0;
  Process* process = nullptr;
  std::function<void()> body;
  std::unique_ptr<Fiber> fiber = std::make_unique<Fiber>();  // null once the thread has ended
  const void* blocked_on = nullptr;
  uint64_t wait = 0;  // counts the waits, so that the end of an old wait is known as such
  bool woken = false;
  bool ended = false;

  static void Main(void* thread) { static_cast<Thread*>(thread)->body(); }
};

uint64_t Random::Next() {
  uint64_t x = (state_ += 0x9E3779B97F4A7C15ull);
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

int64_t Random::Between(int64_t low, int64_t high) {
  return low + static_cast<int64_t>(Next() % static_cast<uint64_t>(high - low + 1));
}

absl::Duration Random::Between(absl::Duration low, absl::Duration high) {
  return absl::Nanoseconds(Between(absl::ToInt64Nanoseconds(low), absl::ToInt64Nanoseconds(high)));
}

bool Random::Chance(double probability) {
  return static_cast<double>(Next() >> 11) * 0x1.0p-53 < probability;
}

World::World(uint64_t seed) : random_(seed) {
  if (std::exchange(the_world, this) != nullptr) std::abort();
  for (int i = 0; i < 3; ++i) random_.Next();  // seeds that differ little must not draw alike
}

World::~World() { the_world = nullptr; }

World* World::current() { return the_world; }

void World::Log(const std::string& text) {
  if (!verbose_) return;
  const Process* process = running_ == nullptr ? nullptr : running_->process;
  std::fprintf(stderr, "%12.6f %-14s %s\n", absl::ToDoubleSeconds(now_),
               process == nullptr ? "-" : process->name.c_str(), text.c_str());
}

void World::Violate(const std::string& text) {
  Log(absl::StrCat("VIOLATION: ", text));
  if (violation_.empty()) violation_ = text;
}

void World::AddToTrace(uint64_t value) { trace_ = (trace_ ^ value) * kFnvPrime; }

void World::AddToTrace(const std::string& bytes) {
  for (const char byte : bytes) AddToTrace(static_cast<uint64_t>(static_cast<unsigned char>(byte)));
}

int World::NewProcess(const std::string& name) {
  processes_.push_back(std::make_unique<Process>());
  Process& process = *processes_.back();
  process.pid = static_cast<int>(processes_.size());
  process.name = absl::StrCat(name, "/", process.pid);
  return process.pid;
}

// `self` runs, and keeps the stack for a moment.
void World::End(Process* process, const Thread* self, const std::string& how) {
  if (!process->alive) return;
  process->alive = false;
  process->stopped = false;
  process->end = how;
  Log(absl::StrCat(process->name, " ", how));
  std::erase_if(ready_, [&](Thread* thread) { return thread->process == process; });
  for (auto& [key, threads] : blocked_)
    std::erase_if(threads, [&](Thread* thread) { return thread->process == process; });
  for (const auto& thread : threads_)
    if (thread->process == process && thread.get() != self) thread->fiber.reset();
  for (auto& callback : std::exchange(process->on_end, {})) callback();
}

void World::Kill(int pid, const std::string& how) {
  Thread* const self = std::exchange(running_, nullptr);
  End(processes_[pid - 1].get(), self, how);
  running_ = self;
  // A process that ends itself does not come back from here.
  if (self != nullptr && !self->process->alive) Suspend();
}

void World::Stop(int pid) {
  Process& process = *processes_[pid - 1];
  if (!process.alive || process.stopped) return;
  Log(absl::StrCat(process.name, " is stopped"));
  process.stopped = true;
  for (Thread* thread : ready_)
    if (thread->process == &process) process.parked.push_back(thread);
  std::erase_if(ready_, [&](Thread* thread) { return thread->process == &process; });
}

void World::Continue(int pid) {
  Process& process = *processes_[pid - 1];
  if (!process.alive || !process.stopped) return;
  Log(absl::StrCat(process.name, " continues"));
  process.stopped = false;
  for (Thread* thread : std::exchange(process.parked, {})) Ready(thread);
}

bool World::alive(int pid) const { return processes_[pid - 1]->alive; }
bool World::stopped(int pid) const { return processes_[pid - 1]->stopped; }
const std::string& World::end(int pid) const { return processes_[pid - 1]->end; }
const std::string& World::name(int pid) const { return processes_[pid - 1]->name; }

void World::OnEnd(int pid, std::function<void()> callback) {
  Process& process = *processes_[pid - 1];
  if (!process.alive) return callback();
  process.on_end.push_back(std::move(callback));
}

uint64_t World::Spawn(int pid, std::function<void()> body) {
  threads_.push_back(std::make_unique<Thread>());
  Thread* thread = threads_.back().get();
  thread->number = threads_.size();
  thread->process = processes_[pid - 1].get();
  thread->body = std::move(body);
  thread->fiber->Start(&Thread::Main, thread);
  Ready(thread);
  return thread->number;
}

int World::current_process() const { return running_ == nullptr ? 0 : running_->process->pid; }
uint64_t World::current_thread() const { return running_ == nullptr ? 0 : running_->number; }

void World::Join(uint64_t thread) {
  Thread* joined = threads_[thread - 1].get();
  while (!joined->ended) Block(joined);
}

void World::Ready(Thread* thread) {
  if (!thread->process->alive) return;
  // In the order of numbers, not of calls: some code of the product goes through sets of pointers, whose
  // order differs from run to run.
  std::vector<Thread*>& others = thread->process->stopped ? thread->process->parked : ready_;
  others.insert(std::lower_bound(others.begin(), others.end(), thread,
                                 [](const Thread* a, const Thread* b) { return a->number < b->number; }),
                thread);
}

void World::Resume(Thread* thread) {
  AddToTrace(thread->number);
  running_ = thread;
  thread->fiber->Resume();
  running_ = nullptr;
  if (!thread->process->alive) thread->fiber.reset();
  if (thread->fiber == nullptr || !thread->fiber->done()) return;
  thread->fiber.reset();
  thread->ended = true;
  thread->body = nullptr;
  Wake(thread);
}

void World::Suspend() { running_->fiber->Suspend(); }

bool World::Block(const void* key, absl::Duration deadline) {
  Thread* thread = running_;
  if (thread == nullptr) std::abort();  // an event must not block
  if (deadline <= now_) {
    Yield();
    return false;
  }
  const uint64_t wait = ++thread->wait;
  thread->blocked_on = key;
  thread->woken = false;
  blocked_[key].push_back(thread);
  if (deadline < absl::InfiniteDuration()) {
    After(deadline - now_, [this, thread, wait] {
      if (thread->wait != wait || thread->blocked_on == nullptr) return;
      std::vector<Thread*>& same = blocked_[thread->blocked_on];
      std::erase(same, thread);
      if (same.empty()) blocked_.erase(thread->blocked_on);
      thread->blocked_on = nullptr;
      Ready(thread);
    });
  }
  Suspend();
  return thread->woken;
}

void World::Wake(const void* key) {
  const auto it = blocked_.find(key);
  if (it == blocked_.end()) return;
  const std::vector<Thread*> threads = std::move(it->second);
  blocked_.erase(it);
  for (Thread* thread : threads) {
    thread->blocked_on = nullptr;
    thread->woken = true;
    Ready(thread);
  }
}

void World::Sleep(absl::Duration duration) {
  const int nobody_wakes = 0;
  Block(&nobody_wakes, now_ + std::max(duration, absl::Nanoseconds(1)));
}

void World::Yield() {
  Ready(running_);
  Suspend();
}

void World::MaybeYield() {
  if (running_ != nullptr && random_.Chance(kYieldProbability)) Yield();
}

void World::LookAround(const std::function<void()>& look) {
  Thread* const thread = std::exchange(running_, nullptr);
  look();
  running_ = thread;
}

void World::After(absl::Duration delay, std::function<void()> event) {
  events_.emplace(std::make_pair(now_ + std::max(delay, absl::ZeroDuration()), ++num_events_),
                  std::move(event));
}

bool World::Run(uint64_t thread, absl::Duration limit) {
  while (violation_.empty() && !threads_[thread - 1]->ended) {
    if (!ready_.empty()) {
      const size_t chosen = ready_.size() == 1 ? 0 : random_.Next() % ready_.size();
      Thread* next = ready_[chosen];
      ready_.erase(ready_.begin() + static_cast<int64_t>(chosen));
      Resume(next);
      if (++resumed_at_this_time_ > kMaxResumesAtOneTime) Violate("a thread waits in a loop");
      continue;
    }
    if (events_.empty()) {
      Violate("nothing can happen any more");
      break;
    }
    const auto event = events_.extract(events_.begin());
    if (event.key().first > now_) resumed_at_this_time_ = 0;
    now_ = event.key().first;
    AddToTrace(static_cast<uint64_t>(absl::ToInt64Nanoseconds(now_)));
    if (now_ > limit) {
      Violate(absl::StrCat("not at its end after ", absl::FormatDuration(limit)));
      break;
    }
    event.mapped()();
  }
  return violation_.empty();
}

}  // namespace somnus::simulation
