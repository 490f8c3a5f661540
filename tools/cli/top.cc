// The command top.
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes_text.h"
#include "base/counted.h"
#include "base/monotonic.h"
#include "base/status_macros.h"
#include "tools/cli/commands.h"
#include "tools/cli/control_client.h"
#include "tools/cli/model_list.h"
#include "tools/cli/raw_terminal.h"
#include "tools/cli/request_report.h"
#include "tools/cli/server.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"
#include "tools/cli/top_screen.h"
#include "tools/cli/top_watcher.h"

namespace somnus::cli {
namespace {

constexpr int kLinesWanted = 10;      // of requests, where nobody can scroll
constexpr int kRequestsWanted = 200;  // that a person may scroll through
constexpr absl::Duration kTransitionTimeout = absl::Minutes(10);
constexpr std::array<const char*, 3> kSorts = {"age", "tokens", "wait"};
constexpr std::array<const char*, 4> kUserSorts = {"open", "wait", "tokens", "name"};
constexpr std::array<const char*, 4> kStates = {"open", "waiting", "running", "all"};

struct TopOptions {
  ServerOptions server;
  absl::Duration interval = absl::Seconds(2);
  int32_t count = 0;
  bool once = false;
};

// ---- Without a screen: one text after the other

std::string Summary(const Server& server, const v1::ListModelStatusResponse& models) {
  int64_t resident_bytes = 0, host_bytes = 0;
  for (const v1::ModelStatus& model : models.models()) {
    resident_bytes += model.resident_bytes();
    host_bytes += model.host_bytes();
  }
  return absl::StrCat(Wrap(absl::StrCat(server.http.Url(), ": ", Counted(models.models_size(), "model"), ", ",
                                        BytesText(resident_bytes), " of device memory, ",
                                        BytesText(host_bytes), " of host memory"),
                           OutputColumns(), 2),
                      "\n\n");
}

std::string TextOf(const Server& server, const TopFacts& facts, bool has_before) {
  constexpr int kWide = 120;
  if (facts.models.models().empty()) return absl::StrCat(server.http.Url(), ": the models are loading\n\n");
  const v1::ListModelStatusResponse* before = has_before ? &facts.before : nullptr;
  std::string text = absl::StrCat(Summary(server, facts.models),
                                  ModelTable(facts.models, OutputColumns(), before, facts.passed), "\n");
  if (has_before)
    absl::StrAppend(&text, SchedulingTable(facts.models, facts.before, facts.passed, OutputColumns()), "\n");
  if (facts.requests.rows.empty()) return text;
  absl::StrAppend(
      &text, absl::StrJoin(RequestLines(facts.requests.rows, -1, std::min(OutputColumns(), kWide)), "\n"),
      "\n\n");
  return text;
}

// Until Ctrl-C, or for that many times.
absl::StatusOr<int> Repeat(const Server& server, const TopOptions& options) {
  const InterruptScope interrupts;
  RequestQuestion question;
  question.limit = kLinesWanted;
  std::optional<TopFacts> before;
  MonotonicTime asked_before;
  for (int32_t i = 0; options.count == 0 || i < options.count; ++i) {
    if (i > 0) poll(nullptr, 0, static_cast<int>(absl::ToInt64Milliseconds(options.interval)));
    if (*InterruptScope::flag()) break;
    const MonotonicTime asked = MonotonicNow();
    ASSIGN_OR_RETURN(TopFacts facts, LookAt(server, question, "", before.has_value() ? &*before : nullptr,
                                            asked - asked_before));
    if (fputs(TextOf(server, facts, before.has_value()).c_str(), stdout) < 0 || fflush(stdout) != 0)
      return kServerError;
    before = std::move(facts);
    asked_before = asked;
  }
  return kOk;
}

// ---- On a terminal

// A lifecycle call under way, which must not hold the screen up, nor the end of this program.
class BackgroundCall {
 public:
  bool is_busy() const {
    absl::MutexLock lock(&state_->mutex);
    return state_->is_busy;
  }
  // `call` returns the note about its result. To be called while nothing is under way.
  void Start(std::function<std::string()> call) {
    {
      absl::MutexLock lock(&state_->mutex);
      state_->is_busy = true;
    }
    std::thread([state = state_, call = std::move(call)] {
      std::string note = call();
      absl::MutexLock lock(&state->mutex);
      state->note = std::move(note);
      state->is_busy = false;
    }).detach();
  }
  // Once, when the call has ended.
  std::optional<std::string> TakeNote() {
    absl::MutexLock lock(&state_->mutex);
    return std::exchange(state_->note, std::nullopt);
  }

 private:
  struct State {
    absl::Mutex mutex;
    bool is_busy ABSL_GUARDED_BY(mutex) = false;
    std::optional<std::string> note ABSL_GUARDED_BY(mutex);
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

class Session {
 public:
  Session(const Server& server, absl::Duration interval, TopFacts first)
      : server_(server), facts_(first), watcher_(server, interval, std::move(first)) {
    view_.question.limit = kRequestsWanted;
    Ask();
  }

  absl::StatusOr<int> Run() {
    const InterruptScope interrupts;
    RawTerminal terminal;
    while (!ends_ && !*InterruptScope::flag() && !RawTerminal::told_to_end()) {
      if (std::optional<std::string> note = call_.TakeNote()) view_.note = *std::move(note);
      const RawTerminal::Size size = terminal.size();
      if (!RawTerminal::Draw(DrawTop(facts_, view_, size.rows, size.columns))) return kServerError;
      bool gone = false;
      for (const KeyPress& key : terminal.Wait(watcher_.news(), kLookMs, &gone)) Press(key, size);
      if (gone) break;
      TakeFacts();
    }
    return kOk;
  }

 private:
  static constexpr int kLookMs = 500;  // at the result of a call, and at signals

  void TakeFacts() {
    facts_ = watcher_.Take();
    const size_t num_models = static_cast<size_t>(facts_.models.models_size());
    view_.model = std::min(view_.model, num_models == 0 ? 0 : num_models - 1);
    // The selection stays with its request, wherever that is sorted to.
    const std::vector<RequestRow>& rows = facts_.requests.rows;
    const auto same = std::find_if(rows.begin(), rows.end(), [&](const RequestRow& row) {
      return row.id == selected_.id && row.received == selected_.received;
    });
    if (same != rows.end()) view_.request = static_cast<size_t>(same - rows.begin());
    SelectRequest(view_.request);
    SelectUser(view_.user);
  }

  void SelectUser(size_t index) {
    const size_t count = facts_.requests.users.size();
    view_.user = std::min(index, count == 0 ? 0 : count - 1);
  }

  void SelectRequest(size_t index) {
    const std::vector<RequestRow>& rows = facts_.requests.rows;
    view_.request = std::min(index, rows.empty() ? 0 : rows.size() - 1);
    selected_ = rows.empty() ? RequestRow() : rows[view_.request];
  }

  const v1::ModelStatus* Model() const {
    return view_.model < static_cast<size_t>(facts_.models.models_size())
               ? &facts_.models.models(static_cast<int>(view_.model))
               : nullptr;
  }

  void Ask() { watcher_.Ask(view_.question, Model() == nullptr ? "" : Model()->model()); }

  void Press(const KeyPress& key, const RawTerminal::Size& size) {
    if (view_.shows_text()) {
      if (!Scroll(key, size)) Close();
    } else if (view_.types_filter) {
      Type(key);
    } else if (!view_.asks.empty()) {
      view_.asks.clear();
      const auto confirmed = std::exchange(on_yes_, nullptr);
      if (key.key == Key::kCharacter && (key.character == 'y' || key.character == 'Y')) confirmed();
    } else {
      view_.note.clear();
      const std::optional<int> by = Steps(key, size.rows);
      if (by.has_value()) return Move(*by);
      key.key == Key::kCharacter ? PressCharacter(key.character) : PressOther(key.key);
    }
  }

  void Close() {
    view_.shows_help = false;
    view_.story.reset();
    view_.scroll = 0;
  }

  // False: the key scrolls nothing.
  bool Scroll(const KeyPress& key, const RawTerminal::Size& size) {
    const std::optional<int> by = Steps(key, size.rows);
    if (!by.has_value()) return false;
    const auto most = static_cast<int>(MostScroll(view_, size.rows, size.columns));
    view_.scroll = static_cast<size_t>(std::clamp(static_cast<int>(view_.scroll) + *by, 0, most));
    return true;
  }

  void Type(const KeyPress& key) {
    std::string& match = view_.question.match;
    if (key.key == Key::kCharacter && match.size() < kMaxFilter) match += key.character;
    if (key.key == Key::kErase && !match.empty()) match.pop_back();
    if (key.key == Key::kEscape) match.clear();
    if (key.key == Key::kEscape || key.key == Key::kEnter) view_.types_filter = false;
    Ask();
  }

  void Move(int by) {
    const size_t at = view_.pane == TopPane::kRequests ? view_.request
                      : view_.pane == TopPane::kUsers  ? view_.user
                                                       : view_.model;
    const size_t to = by < 0 && at < static_cast<size_t>(-by) ? 0 : at + static_cast<size_t>(by);
    if (view_.pane == TopPane::kRequests) return SelectRequest(to);
    if (view_.pane == TopPane::kUsers) return SelectUser(to);
    const auto count = static_cast<size_t>(facts_.models.models_size());
    view_.model = std::min(to, count == 0 ? 0 : count - 1);
    Ask();
  }

  // How far a key moves on a screen of so many rows; nothing: the key is for something else.
  static std::optional<int> Steps(const KeyPress& key, int rows) {
    constexpr int kFar = 1 << 20;
    const int page = std::max(1, rows / 2);
    switch (key.key) {
      case Key::kUp:
        return -1;
      case Key::kDown:
        return 1;
      case Key::kPageUp:
        return -page;
      case Key::kPageDown:
        return page;
      case Key::kHome:
        return -kFar;
      case Key::kEnd:
        return kFar;
      case Key::kCharacter:
        if (key.character == 'j') return 1;
        if (key.character == 'k') return -1;
        return std::nullopt;
      default:
        return std::nullopt;
    }
  }

  void PressOther(Key key) {
    switch (key) {
      case Key::kTab:
        view_.pane = view_.pane == TopPane::kRequests ? TopPane::kModels
                     : view_.pane == TopPane::kModels ? TopPane::kUsers
                                                      : TopPane::kRequests;
        return;
      case Key::kEnter:
        return view_.pane == TopPane::kUsers ? ShowRequestsOfUser() : Explain();
      case Key::kEscape:
        view_.question.match.clear();
        return Ask();
      default:
        return;
    }
  }

  void PressCharacter(char character) {
    switch (character) {
      case 'q':
        ends_ = true;
        return;
      case '?':
      case 'h':
        view_.shows_help = true;
        return;
      case 's':
        return view_.pane == TopPane::kUsers ? Next(kUserSorts, &view_.question.users_sort)
                                             : Next(kSorts, &view_.question.sort);
      case 'a':
        return Next(kStates, &view_.question.state);
      case '/':
        view_.types_filter = true;
        return;
      case 'x':
        return AskToEnd();
      case 'z':
        return AskToSleep();
      case 'p':
        return AskToPause();
      default:
        view_.note = "? shows the keys";
    }
  }

  template <size_t n>
  void Next(const std::array<const char*, n>& words, std::string* word) {
    const auto at = std::find(words.begin(), words.end(), *word);
    *word = at == words.end() || at + 1 == words.end() ? words.front() : *(at + 1);
    Ask();
  }

  void Confirm(std::string question, std::function<void()> on_yes) {
    view_.asks = std::move(question);
    on_yes_ = std::move(on_yes);
  }

  void ShowRequestsOfUser() {
    if (facts_.requests.users.empty() || facts_.requests.users[view_.user].user.empty()) return;
    view_.question.match = facts_.requests.users[view_.user].user;
    view_.pane = TopPane::kRequests;
    Ask();
  }

  void Explain() {
    if (view_.pane != TopPane::kRequests || facts_.requests.rows.empty()) return;
    const absl::StatusOr<nlohmann::json> json = FetchRequest(server_, selected_.id);
    if (!json.ok()) {
      view_.note = std::string(json.status().message());
      return;
    }
    view_.story = ReadRequestStory(*json);
  }

  void AskToEnd() {
    if (facts_.requests.rows.empty()) return;
    Confirm(absl::StrCat("end the request ", selected_.id, "?"), [this, row = selected_] {
      const absl::StatusOr<int> ended = AbortRequests(server_, row.model, {row.id});
      view_.note = !ended.ok()   ? std::string(ended.status().message())
                   : *ended == 0 ? absl::StrCat(row.id, " has ended already")
                                 : absl::StrCat(row.id, " is ended");
      Ask();
    });
  }

  // Starts a call about the selected model once the person has said yes.
  template <typename Call>
  void AskAbout(const char* verb, const char* doing, Call call) {
    if (Model() == nullptr) return;
    const std::string name = Model()->model();
    if (call_.is_busy()) {
      view_.note = "another call is under way";
      return;
    }
    Confirm(absl::StrCat(verb, " ", name, "?"), [this, name, doing = std::string(doing), call] {
      view_.note = absl::StrCat(doing, " ", name, " ...");
      call_.Start([server = server_, name, doing, call] {
        const absl::Status status = call(server, name);
        return status.ok() ? absl::StrCat(doing, " ", name, ": done") : std::string(status.message());
      });
    });
  }

  void AskToSleep() {
    if (Model() == nullptr) return;
    if (Model()->state() == v1::ENGINE_STATE_ASLEEP) {
      return AskAbout("wake", "waking", [](const Server& server, const std::string& name) {
        v1::WakeUpRequest request;
        request.set_model(name);
        return WakeUp(server, request, kTransitionTimeout).status();
      });
    }
    AskAbout("put to sleep (level 1)", "putting to sleep", [](const Server& server, const std::string& name) {
      v1::SleepRequest request;
      request.set_model(name);
      return Sleep(server, request, kTransitionTimeout).status();
    });
  }

  void AskToPause() {
    if (Model() == nullptr) return;
    if (Model()->paused()) {
      return AskAbout("resume", "resuming", [](const Server& server, const std::string& name) {
        v1::ResumeRequest request;
        request.set_model(name);
        return Resume(server, request, kTransitionTimeout).status();
      });
    }
    AskAbout("pause", "pausing", [](const Server& server, const std::string& name) {
      v1::PauseRequest request;
      request.set_model(name);
      return Pause(server, request, kTransitionTimeout).status();
    });
  }

  static constexpr size_t kMaxFilter = 60;

  const Server server_;
  TopFacts facts_;
  TopView view_;
  RequestRow selected_;
  std::function<void()> on_yes_;
  bool ends_ = false;
  BackgroundCall call_;
  TopWatcher watcher_;
};

absl::StatusOr<int> Top(TopOptions options) {
  ASSIGN_OR_RETURN(const Server server, FindServer(options.server));
  if (options.once) options.count = 1;
  const bool has_screen = UnderstandsEscapes(STDIN_FILENO) && UnderstandsEscapes(STDOUT_FILENO);
  if (!has_screen || options.count > 0) return Repeat(server, options);
  RequestQuestion question;
  question.limit = kRequestsWanted;
  ASSIGN_OR_RETURN(TopFacts first, LookAt(server, question, "", nullptr, absl::ZeroDuration()));
  Session session(server, options.interval, std::move(first));
  return session.Run();
}

}  // namespace

int RunTop(const std::vector<std::string>& args) {
  TopOptions o;
  const FlagTable table = {
      .program = "somnus top",
      .usage = "somnus top [flags]",
      .about =
          "On a terminal a screen of what the server does, with the models, the ranks of one, users, and\n"
          "requests; ? shows the keys, which also end a request, put a model to sleep, and explain a "
          "request.\n"
          "Elsewhere, or with --once or --count, the same as text: as somnus models, and how many tokens of\n"
          "prompts and of output each model computes in a second. Below that, since the last look: "
          "sequences\n"
          "preempted in a second, blocks swapped out, swapped in and copied for forks, admissions refused "
          "for\n"
          "the watermark alone, which share of prompt tokens was cached, how long requests waited in the\n"
          "queue, for first tokens (TTFT) and for each further token (TPOT), which share of the tokens "
          "guessed\n"
          "by speculative decoding was right, and why sequences were preempted; then the requests that are\n"
          "open for longest.",
      .groups = {
          {"Flags",
           {Flag::Time("interval", &o.interval, absl::Milliseconds(100), absl::Hours(1), "between two looks"),
            Flag::Switch("once", &o.once, "one look, as text"),
            Flag::Int("count", &o.count, 0, 1 << 30, "so many looks, as text; 0: until the end")}},
          ServerFlags(&o.server)}};
  if (const auto code = ParseCommand(table, args)) return *code;
  return ExitCode(Top(o));
}

}  // namespace somnus::cli
