#include "tools/cli/top_screen.h"

#include <unistd.h>

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/bytes_text.h"
#include "base/counted.h"
#include "tools/cli/model_list.h"
#include "tools/cli/terminal.h"
#include "tools/cli/text_table.h"

namespace somnus::cli {
namespace {

using Lines = std::vector<std::string>;

constexpr size_t kMostRanks = 4, kMostUsers = 4, kMostModels = 8;
constexpr int kLeastRequestRows = 8;  // that go before ranks and users

constexpr char kHelp[] =
    "Keys:\n"
    "  q          ends; so does Ctrl-C\n"
    "  Tab        goes between requests, models and users\n"
    "  arrows     select a row; also j and k, page up and down\n"
    "  Enter      explains the selected request; shows the requests of the selected user\n"
    "  s          sorts requests: by age, by output tokens, by the time they wait; users: by open and by\n"
    "             waiting requests, by output tokens, by name\n"
    "  a          shows open requests, those that wait, that run, or all that are known\n"
    "  /          filters requests by a part of the id, the model's or the user's name\n"
    "  x          ends the selected request\n"
    "  z          puts the selected model to sleep, or wakes it\n"
    "  p          pauses the selected model, or ends its pause\n"
    "Arrows scroll, Esc goes back.";

// A column of a table: a title, a width that is kept, and whether it is a number.
struct Column {
  const char* title;
  int width;
  bool is_number;
  int from_columns;  // the width of terminals that have room for it
};

std::string Cell(std::string text, int width, bool is_number) {
  if (Width(text) > width) text = Cut(text, width - 1) + "~";
  const std::string space(static_cast<size_t>(std::max(0, width - Width(text))), ' ');
  return is_number ? space + text : text + space;
}

// The first column takes what the others leave.
template <size_t n>
std::string Row(const Column (&columns)[n], const std::vector<std::string>& cells, bool selected, int width) {
  int left = width - 2;
  for (size_t i = 1; i < n; ++i) left -= width >= columns[i].from_columns ? columns[i].width + 1 : 0;
  std::string line = absl::StrCat(selected ? "> " : "  ", Cell(cells[0], std::max(4, left), false));
  for (size_t i = 1; i < n; ++i) {
    if (width >= columns[i].from_columns)
      absl::StrAppend(&line, " ", Cell(cells[i], columns[i].width, columns[i].is_number));
  }
  absl::StripTrailingAsciiWhitespace(&line);
  return Cut(line, width);
}

template <size_t n>
std::string Titles(const Column (&columns)[n], int width) {
  std::vector<std::string> titles;
  for (const Column& column : columns) titles.emplace_back(column.title);
  return Styled(STDOUT_FILENO, Style::kBold, Row(columns, titles, false, width));
}

std::string Marked(std::string line, bool selected) {
  return selected ? Styled(STDOUT_FILENO, Style::kBold, line) : line;
}

// ---- Models

constexpr Column kModelColumns[] = {
    {"model", 0, false, 0},    {"state", 10, false, 0},   {"memory", 10, true, 0}, {"run", 5, true, 0},
    {"wait", 5, true, 0},      {"KV", 4, true, 56},       {"out/s", 7, true, 60},  {"TTFT", 6, true, 76},
    {"TPOT", 6, true, 76},     {"prompt/s", 8, true, 96}, {"host", 10, true, 106}, {"step/s", 7, true, 114},
    {"tok/step", 8, true, 123}};

std::string Rate(int64_t now, int64_t then, absl::Duration passed) {
  if (passed <= absl::ZeroDuration() || now < then) return "-";
  return absl::StrFormat("%.1f", static_cast<double>(now - then) / absl::ToDoubleSeconds(passed));
}

// The tokens that a step computes or samples, on average.
std::string TokensOfAStep(const v1::ModelStatus& now, const v1::ModelStatus& then) {
  const int64_t steps = now.num_steps() - then.num_steps();
  const int64_t tokens =
      now.prompt_tokens() + now.generation_tokens() - then.prompt_tokens() - then.generation_tokens();
  if (steps <= 0 || tokens < 0) return "-";
  return absl::StrFormat("%.1f", static_cast<double>(tokens) / static_cast<double>(steps));
}

std::string Used(const v1::ModelStatus& model) {
  if (model.total_blocks() == 0) return "-";
  return absl::StrFormat("%.0f%%",
                         100.0 * (model.total_blocks() - model.free_blocks()) / model.total_blocks());
}

std::string StateOf(const v1::ModelStatus& model) {
  std::string state = StateName(model.state());
  if (model.sleep_level() > 0) absl::StrAppend(&state, " ", model.sleep_level());
  return state;
}

Lines ModelLines(const TopFacts& facts, const TopView& view, size_t most, int columns) {
  std::map<std::string, const v1::ModelStatus*> earlier;
  for (const v1::ModelStatus& model : facts.before.models()) earlier[model.model()] = &model;
  const bool is_pane = view.pane == TopPane::kModels;
  const size_t count = static_cast<size_t>(facts.models.models_size());
  const size_t first = view.model >= most ? view.model - most + 1 : 0;
  Lines lines = {Titles(kModelColumns, columns)};
  for (size_t i = first; i < std::min(count, first + most); ++i) {
    const v1::ModelStatus& model = facts.models.models(static_cast<int>(i));
    const auto found = earlier.find(model.model());
    const v1::ModelStatus& then = found == earlier.end() ? model : *found->second;
    const absl::Duration passed = found == earlier.end() ? absl::ZeroDuration() : facts.passed;
    const bool selected = is_pane && i == view.model;
    lines.push_back(
        Marked(Row(kModelColumns,
                   {Printable(model.model()), StateOf(model), BytesText(model.resident_bytes()),
                    absl::StrCat(model.num_requests_running()), absl::StrCat(model.num_requests_waiting()),
                    Used(model), Rate(model.generation_tokens(), then.generation_tokens(), passed),
                    MeanWait(model.latency().num_first_tokens() - then.latency().num_first_tokens(),
                             model.latency().first_token_s() - then.latency().first_token_s()),
                    MeanWait(model.latency().num_further_tokens() - then.latency().num_further_tokens(),
                             model.latency().further_token_s() - then.latency().further_token_s()),
                    Rate(model.prompt_tokens(), then.prompt_tokens(), passed), BytesText(model.host_bytes()),
                    Rate(model.num_steps(), then.num_steps(), passed), TokensOfAStep(model, then)},
                   selected, columns),
               selected));
  }
  if (count > most) lines.push_back(absl::StrCat("  ", count - most, " more"));
  return lines;
}

// ---- Ranks

constexpr Column kRankColumns[] = {{"rank", 0, false, 0},     {"weights", 10, true, 0},
                                   {"KV cache", 10, true, 0}, {"workspace", 10, true, 0},
                                   {"pid", 8, true, 66},      {"host", 16, false, 88}};

std::string TagBytes(const v1::RankStatus& rank, const char* tag) {
  const auto found = rank.bytes_by_tag().find(tag);
  return BytesText(found == rank.bytes_by_tag().end() ? 0 : found->second);
}

Lines RankLines(const v1::GetStatusResponse& status, int columns) {
  if (status.ranks().empty()) return {};
  Lines lines = {Titles(kRankColumns, columns)};
  for (const v1::RankStatus& rank : status.ranks()) {
    if (lines.size() > kMostRanks) {
      lines.push_back(absl::StrCat("  ", status.ranks_size() - static_cast<int>(kMostRanks), " more"));
      break;
    }
    const std::string name = status.replicas().empty() ? absl::StrCat(rank.rank())
                                                       : absl::StrCat(rank.replica(), ".", rank.rank());
    lines.push_back(Row(kRankColumns,
                        {absl::StrCat(name, " ", Printable(rank.device())), TagBytes(rank, "weights"),
                         TagBytes(rank, "kv_cache"), TagBytes(rank, "workspace"), absl::StrCat(rank.pid()),
                         Printable(rank.host())},
                        false, columns));
  }
  return lines;
}

// ---- Requests

constexpr Column kRequestColumns[] = {
    {"request", 0, false, 0}, {"state", 9, false, 0},   {"age", 8, true, 0},    {"prompt", 6, true, 0},
    {"output", 6, true, 0},   {"user", 10, false, 72},  {"first", 8, true, 84}, {"queue", 8, true, 94},
    {"pre", 3, true, 98},     {"model", 16, false, 116}};

std::string Short(double seconds) {
  if (seconds < 0) return "-";
  if (seconds < 100) return absl::StrFormat("%.1fs", seconds);
  if (seconds < 6000) return absl::StrFormat("%.0fm", seconds / 60);
  return absl::StrFormat("%.0fh", seconds / 3600);
}

std::string RequestLine(const RequestRow& row, bool selected, int columns) {
  const std::string state = row.state == "ended" ? row.finish_reason : row.state;
  return Marked(Row(kRequestColumns,
                    {Printable(row.id), Printable(state), Short(row.age_s), absl::StrCat(row.prompt_tokens),
                     absl::StrCat(row.output_tokens), Printable(row.user), Short(row.ttft_s),
                     Short(row.queue_s), absl::StrCat(row.preemptions), Printable(row.model)},
                    selected, columns),
                selected);
}

std::string RequestsHeadline(const TopFacts& facts, const TopView& view, int columns) {
  const auto count = [&](const char* state) {
    const auto found = facts.requests.counts.find(state);
    return found == facts.requests.counts.end() ? 0 : found->second;
  };
  std::string text =
      absl::StrCat("requests (", view.question.state, ", by ", view.question.sort, "): ", count("running"),
                   " run, ", count("waiting"), " wait, ", count("preempted"), " preempted");
  if (!view.question.match.empty() && !view.types_filter)
    absl::StrAppend(&text, ", with '", Printable(view.question.match), "'");
  return Cut(text, columns);
}

// ---- Users

constexpr Column kUserColumns[] = {
    {"user", 0, false, 0}, {"open", 7, true, 0}, {"wait", 7, true, 0}, {"output", 10, true, 0}};

bool HasUsers(const TopFacts& facts) {
  const std::vector<UserRow>& users = facts.requests.users;
  return std::any_of(users.begin(), users.end(), [](const UserRow& user) { return !user.user.empty(); });
}

// `most` users, with the selected one among them.
Lines UserLines(const TopFacts& facts, const TopView& view, size_t most, int columns) {
  const std::vector<UserRow>& users = facts.requests.users;
  Lines lines = {Cut(absl::StrCat("users (by ", view.question.users_sort, "):"), columns),
                 Titles(kUserColumns, columns)};
  const bool is_pane = view.pane == TopPane::kUsers;
  const size_t first = is_pane && view.user >= most ? view.user - most + 1 : 0;
  for (size_t i = first; i < std::min(users.size(), first + most); ++i) {
    const UserRow& user = users[i];
    const bool selected = is_pane && i == view.user;
    lines.push_back(Marked(Row(kUserColumns,
                               {user.user.empty() ? "-" : Printable(user.user), absl::StrCat(user.open),
                                absl::StrCat(user.waiting), absl::StrCat(user.output_tokens)},
                               selected, columns),
                           selected));
  }
  if (users.size() > most) lines.push_back(Cut(absl::StrCat("  ", users.size() - most, " more"), columns));
  return lines;
}

// The first users, in one line.
std::string UsersLine(const TopFacts& facts, int columns) {
  std::vector<std::string> parts;
  for (const UserRow& user : facts.requests.users) {
    if (parts.size() == kMostUsers) break;
    if (!user.user.empty()) parts.push_back(absl::StrCat(Printable(user.user), " ", user.open));
  }
  return parts.empty() ? "" : Cut(absl::StrCat("users: ", absl::StrJoin(parts, ", ")), columns);
}

// ---- The whole

std::string Footer(const TopView& view, int columns) {
  if (view.types_filter) return Cut(absl::StrCat("filter: ", Printable(view.question.match), "_"), columns);
  if (!view.asks.empty()) return Cut(absl::StrCat(Printable(view.asks), " (y/n)"), columns);
  if (!view.note.empty()) return Cut(Printable(view.note), columns);
  return Cut("q ends, ? helps, Tab, Enter explains, x ends a request, z sleeps, s sorts, / filters", columns);
}

// The help or the story, whole.
Lines TextLines(const TopView& view, int columns) {
  const std::string text = view.shows_help ? kHelp : StoryText(*view.story, absl::LocalTimeZone(), columns);
  Lines lines;
  for (const absl::string_view line : absl::StrSplit(absl::StripTrailingAsciiWhitespace(text), '\n'))
    lines.push_back(Cut(line, columns));
  return lines;
}

// The part of the help or the story that there is room for. Where that is not all, the last line says so.
Lines DrawText(const TopView& view, int rows, int columns) {
  Lines lines = TextLines(view, columns);
  const size_t count = lines.size(), room = static_cast<size_t>(std::max(0, rows));
  if (count <= room) return lines;
  const size_t first = std::min(view.scroll, MostScroll(view, rows, columns));
  const size_t shown = room > 0 ? room - 1 : 0;
  Lines part(lines.begin() + static_cast<ptrdiff_t>(first),
             lines.begin() + static_cast<ptrdiff_t>(first + shown));
  if (room > 0)
    part.push_back(Cut(absl::StrCat("lines ", first + 1, " to ", first + shown, " of ", count,
                                    ": arrows scroll, any other key goes back"),
                       columns));
  return part;
}

std::string Headline(const TopFacts& facts, int columns) {
  const double uptime = facts.status.uptime_s();
  return Cut(absl::StrCat("somnus top  ", facts.url, "  up ",
                          absl::FormatDuration(absl::Seconds(static_cast<int64_t>(uptime))), "  ",
                          Counted(facts.models.models_size(), "model")),
             columns);
}

void Append(const Lines& more, Lines* lines) { lines->insert(lines->end(), more.begin(), more.end()); }

// The rows of requests that there is room for, with the selected one among them.
Lines RequestRows(const TopFacts& facts, const TopView& view, int room, int columns) {
  Lines lines = {Titles(kRequestColumns, columns)};
  const std::vector<RequestRow>& rows = facts.requests.rows;
  const auto most = static_cast<size_t>(std::max(0, room - 1));
  const size_t first = view.request >= most && most > 0 ? view.request - most + 1 : 0;
  for (size_t i = first; i < std::min(rows.size(), first + most); ++i)
    lines.push_back(RequestLine(rows[i], view.pane == TopPane::kRequests && i == view.request, columns));
  return lines;
}

}  // namespace

std::vector<std::string> RequestLines(const std::vector<RequestRow>& rows, int selected, int columns) {
  Lines lines = {Titles(kRequestColumns, columns)};
  for (size_t i = 0; i < rows.size(); ++i)
    lines.push_back(RequestLine(rows[i], static_cast<int>(i) == selected, columns));
  return lines;
}

size_t MostScroll(const TopView& view, int rows, int columns) {
  if (!view.shows_text()) return 0;
  const size_t count = TextLines(view, columns).size();
  if (rows > 0 && count <= static_cast<size_t>(rows)) return 0;
  return count - static_cast<size_t>(std::max(0, rows - 1));
}

std::vector<std::string> DrawTop(const TopFacts& facts, const TopView& view, int rows, int columns) {
  if (view.shows_text()) return DrawText(view, rows, columns);
  Lines lines = {Styled(STDOUT_FILENO, Style::kBold, Headline(facts, columns))};
  if (!facts.error.empty())
    lines.push_back(Styled(STDOUT_FILENO, Style::kRed, Cut(Printable(facts.error), columns)));
  Append(ModelLines(facts, view, std::min<size_t>(kMostModels, static_cast<size_t>(std::max(1, rows / 4))),
                    columns),
         &lines);
  const Lines ranks = RankLines(facts.status, columns);
  const auto fits = [&](const Lines& more) {
    return rows - static_cast<int>(lines.size() + more.size()) >= kLeastRequestRows;
  };
  if (fits(ranks)) Append(ranks, &lines);
  if (HasUsers(facts) || view.pane == TopPane::kUsers) {
    const bool is_pane = view.pane == TopPane::kUsers;
    const size_t most = is_pane ? static_cast<size_t>(std::max(1, rows / 3)) : kMostUsers;
    const Lines users = UserLines(facts, view, most, columns);
    if (is_pane || fits(users)) {
      Append(users, &lines);
    } else {
      lines.push_back(UsersLine(facts, columns));
    }
  }
  lines.push_back(RequestsHeadline(facts, view, columns));
  Append(RequestRows(facts, view, rows - 1 - static_cast<int>(lines.size()), columns), &lines);
  lines.resize(static_cast<size_t>(std::max(0, rows - 1)));
  lines.push_back(Footer(view, columns));
  return lines;
}

}  // namespace somnus::cli
