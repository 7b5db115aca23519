// Which of the agent's containers an id on the command line means.
//
// With --root DIR every folder has its own containers. They are marked with the folder as their namespace. A
// container has its own id with the agent, unless another folder's has it already: then one with a suffix.
#pragma once

#include <string>
#include <string_view>

#include "agent/client/session.h"
#include "agent/core/result.h"

namespace berth::ctl {

class Names {
 public:
    // `root`: the value of --root; empty: no namespace, ids are the agent's. Makes the folder.
    core::Status open(std::string_view root);

    bool has_root() const { return !namespace_.empty(); }
    // What goes along with every call; empty without --root.
    const std::string& namespace_name() const { return namespace_; }
    bool owns(std::string_view container_namespace) const {
        return !has_root() || container_namespace == namespace_;
    }

    // The agent's id of an existing container. NOT_FOUND in the agent's words.
    core::Result<std::string> find(client::Session& session, std::string_view id);
    // Of a new one, when `id` itself is another root's.
    std::string other_id(std::string_view id) const;
    // Where files of a container lie that are the caller's, not the agent's: DIR/ID of the root (without one,
    // of /run/berthctl). Empty for what is no name of a folder. Nothing is made.
    std::string folder(std::string_view user_id) const;
    // What users call the container that the agent calls so.
    std::string user_id(std::string_view agent_id) const;

 private:
    std::string path_ = "/run/berthctl";
    std::string namespace_;
    std::string suffix_;
};

}  // namespace berth::ctl
