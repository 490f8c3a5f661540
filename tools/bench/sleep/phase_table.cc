#include "tools/bench/sleep/phase_table.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "tools/bench/median.h"

namespace somnus {
namespace {

struct FloorName {
  const char* name;
  double SleepFloors::*speed;
};
constexpr FloorName kFloorNames[] = {{"fault", &SleepFloors::fault},
                                     {"copy", &SleepFloors::copy},
                                     {"release", &SleepFloors::release},
                                     {"disk_write", &SleepFloors::disk_write},
                                     {"disk_read", &SleepFloors::disk_read}};

// The ratio is taken for each round: the speed of a shared machine varies between rounds.
double Ratio(const Phase& phase) {
  std::vector<double> ratios;
  for (size_t i = 0; i < phase.floor_seconds.size(); ++i)
    ratios.push_back(phase.seconds[i] / phase.floor_seconds[i]);
  return Median(std::move(ratios));
}

std::string Line(const Phase& phase) {
  const auto [least, most] = std::minmax_element(phase.seconds.begin(), phase.seconds.end());
  const std::string bytes = phase.bytes > 0 ? absl::StrFormat("%.1f MB", phase.bytes / 1e6) : "";
  std::string line = absl::StrFormat("  %-34s %11s %9.2f ms (%.2f..%.2f)", phase.name, bytes,
                                     1e3 * Median(phase.seconds), 1e3 * *least, 1e3 * *most);
  if (phase.floor_seconds.empty()) return line;
  return absl::StrFormat("%s, %.2f of its floor of %.2f ms", line, Ratio(phase),
                         1e3 * Median(phase.floor_seconds));
}

// Sizes in the picture, in pixels.
constexpr int kRowHeight = 18, kNameWidth = 260, kBarWidth = 420, kFigureWidth = 220;

std::string SvgText(int x, int y, const std::string& text, const char* attributes = "") {
  const std::string escaped = absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
  return absl::StrFormat("<text x='%d' y='%d' %s>%s</text>\n", x, y, attributes, escaped);
}

std::string SvgBar(const Phase& phase, double pixels_per_second, int y) {
  const double seconds = Median(phase.seconds), floor = Median(phase.floor_seconds);
  std::string row = SvgText(12, y, phase.name);
  absl::StrAppendFormat(&row, "<rect x='%d' y='%d' width='%.1f' height='12' fill='#4878a8'/>\n", kNameWidth,
                        y - 11, seconds * pixels_per_second);
  std::string figures = absl::StrFormat("%.1f ms", 1e3 * seconds);
  if (floor > 0) {
    const double x = kNameWidth + floor * pixels_per_second;
    absl::StrAppendFormat(&row,
                          "<line x1='%.1f' x2='%.1f' y1='%d' y2='%d' stroke='#c03020' stroke-width='2'/>\n",
                          x, x, y - 13, y + 3);
    absl::StrAppendFormat(&figures, ", %.2f of the floor", Ratio(phase));
  }
  return row + SvgText(kNameWidth + kBarWidth + 8, y, figures);
}

}  // namespace

void PhaseTable::Add(const std::string& section, const std::string& name, int64_t bytes, double seconds,
                     double floor_seconds) {
  auto phase = std::find_if(phases_.begin(), phases_.end(), [&](const Phase& known) {
    return known.section == section && known.name == name;
  });
  if (phase == phases_.end()) phase = phases_.insert(phases_.end(), {section, name, bytes, {}, {}});
  phase->seconds.push_back(seconds);
  if (floor_seconds > 0) phase->floor_seconds.push_back(floor_seconds);
}

void PhaseTable::AddQuantity(const std::string& section, const std::string& name, const std::string& unit,
                             double value) {
  auto quantity = std::find_if(quantities_.begin(), quantities_.end(), [&](const Quantity& known) {
    return known.section == section && known.name == name;
  });
  if (quantity == quantities_.end())
    quantity = quantities_.insert(quantities_.end(), {section, name, unit, {}});
  quantity->values.push_back(value);
}

std::string PhaseTable::ToText() const {
  std::string text = "floors (GB/s):";
  for (const FloorName& floor : kFloorNames) {
    std::vector<double> speeds;
    for (const SleepFloors& round : floors_) speeds.push_back(round.*floor.speed);
    if (Median(speeds) > 0) absl::StrAppendFormat(&text, " %s %.2f", floor.name, Median(speeds) / 1e9);
  }
  text += "\n";
  std::string section;
  for (const Phase& phase : phases_) {
    if (phase.section != section) absl::StrAppend(&text, section = phase.section, "\n");
    absl::StrAppend(&text, Line(phase), "\n");
  }
  for (const Quantity& quantity : quantities_) {
    const auto [least, most] = std::minmax_element(quantity.values.begin(), quantity.values.end());
    absl::StrAppendFormat(&text, "%s: %s %.2f %s (%.2f..%.2f)\n", quantity.section, quantity.name,
                          Median(quantity.values), quantity.unit, *least, *most);
  }
  return text;
}

nlohmann::json PhaseTable::ToJson() const {
  nlohmann::json json = {{"floors", nlohmann::json::object()}, {"phases", nlohmann::json::array()}};
  for (const FloorName& floor : kFloorNames) {
    for (const SleepFloors& round : floors_)
      json["floors"][absl::StrCat(floor.name, "_bytes_per_s")].push_back(round.*floor.speed);
  }
  for (const Phase& phase : phases_) {
    nlohmann::json row = {{"section", phase.section},
                          {"name", phase.name},
                          {"bytes", phase.bytes},
                          {"seconds", phase.seconds},
                          {"median_seconds", Median(phase.seconds)}};
    if (!phase.floor_seconds.empty()) {
      row["floor_seconds"] = phase.floor_seconds;
      row["ratio_to_floor"] = Ratio(phase);
    }
    json["phases"].push_back(std::move(row));
  }
  json["quantities"] = nlohmann::json::array();
  for (const Quantity& quantity : quantities_) {
    json["quantities"].push_back({{"section", quantity.section},
                                  {"name", quantity.name},
                                  {"unit", quantity.unit},
                                  {"values", quantity.values},
                                  {"median", Median(quantity.values)}});
  }
  return json;
}

std::string PhaseTable::ToSvg() const {
  std::map<std::string, double> longest;
  for (const Phase& phase : phases_) {
    double& seconds = longest[phase.section];
    seconds = std::max({seconds, Median(phase.seconds), Median(phase.floor_seconds)});
  }
  std::string rows;
  int y = kRowHeight;
  std::string section;
  for (const Phase& phase : phases_) {
    if (phase.section != section) {
      absl::StrAppend(&rows, SvgText(0, y, section = phase.section, "font-weight='bold'"));
      y += kRowHeight;
    }
    absl::StrAppend(&rows, SvgBar(phase, kBarWidth / std::max(longest[section], 1e-9), y));
    y += kRowHeight;
  }
  return absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' width='%d' height='%d' font-family='sans-serif' "
      "font-size='12'>\n%s</svg>\n",
      kNameWidth + kBarWidth + kFigureWidth, y, rows);
}

}  // namespace somnus
