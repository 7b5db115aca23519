// The parts of the OCI spec parser, one function per object. Only spec_parse*.cc use this.
#pragma once

#include <string>

#include "agent/core/container_spec.h"
#include "agent/core/json.h"

namespace berth::core {

// Each reads its object and reports the first error to its JsonReport; nothing is returned.
void parse_process(JsonObject& in, ProcessSpec& out);
void parse_mounts(JsonObject& config, ContainerSpec& out);
void parse_linux(JsonObject& in, ContainerSpec& out);
void parse_hooks(JsonObject& config, ContainerSpec& out);  // after process
void parse_annotations(JsonObject& config, ContainerSpec& out);

// What contradicts something elsewhere in the spec.
Status check_spec(const ContainerSpec& spec);

// Refuses `key` with UNIMPLEMENTED when it holds anything (not null, "", 0, false, [] or {}).
void refuse_if_set(JsonObject& in, std::string_view key);

// Checks one path of the spec: absolute, not longer than limits::kPathBytes. Reports.
void check_absolute(JsonReport& report, const std::string& path, const std::string& value);

}  // namespace berth::core
