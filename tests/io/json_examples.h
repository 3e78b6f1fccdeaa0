#pragma once

#include <string>
#include <string_view>

#include "headroom/io/json.h"
#include "tests/io/support.h"

namespace headroom::internal {

// The examples of docs/formats.md.
inline constexpr const char* kTiny = R"({
  "format": "headroom.graph/1",
  "name": "tiny",
  "values": [
    {"name": "x",  "bytes": 8, "resident": true},
    {"name": "a",  "bytes": 4},
    {"name": "loss", "bytes": 4},
    {"name": "ga", "bytes": 4},
    {"name": "gw", "bytes": 2}
  ],
  "ops": [
    {"name": "f1", "phase": "forward",  "inputs": ["x"],         "outputs": ["a"],    "time_ns": 5},
    {"name": "f2", "phase": "forward",  "inputs": ["a"],         "outputs": ["loss"], "time_ns": 3, "workspace_bytes": 0},
    {"name": "b2", "phase": "backward", "inputs": ["a", "loss"], "outputs": ["ga"],   "time_ns": 6, "recompute": false},
    {"name": "b1", "phase": "backward", "inputs": ["ga", "x"],   "outputs": ["gw"],   "time_ns": 6}
  ],
  "outputs": ["loss", "gw"]
}
)";

inline constexpr const char* kTwo = R"({
  "format": "headroom.chain/1",
  "name": "two",
  "resident_bytes": 100, "input_bytes": 4, "input_gradient_bytes": 0,
  "stages": [
    {"name": "conv", "forward_ns": 2, "backward_ns": 4, "output_bytes": 3, "tape_bytes": 8,
     "forward_workspace_bytes": 1, "backward_workspace_bytes": 2, "gradient_bytes": 9},
    {"name": "loss", "forward_ns": 0, "backward_ns": 0, "output_bytes": 0, "tape_bytes": 0}
  ]
}
)";

inline constexpr const char* kTinySchedule = R"({"format": "headroom.schedule/1", "graph": "tiny",
 "steps": [{"run": "f1"}, {"run": "f2"}, {"run": "b2"}, {"drop": "a"}, {"run": "b1"}, {"drop": "ga"}]}
)";

inline Graph tiny() { return read_graph_json(kTiny, "tiny.json"); }

inline std::string graph_message(const std::string& text) {
  return message_of([&] { read_graph_json(text, "net.json"); });
}
inline std::string chain_message(const std::string& text) {
  return message_of([&] { read_chain_json(text, "net.json"); });
}
inline std::string schedule_message(const std::string& text) {
  return message_of([&] { read_schedule_json(text, "s.json", tiny()); });
}
inline std::string tiny_with(std::string_view from, std::string_view to) { return with(kTiny, from, to); }

}  // namespace headroom::internal
