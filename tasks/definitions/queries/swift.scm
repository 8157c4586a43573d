(class_declaration name: (type_identifier) @name) @definition.class
(class_declaration "extension" name: (user_type) @name) @definition.impl
(protocol_declaration name: (type_identifier) @name) @definition.interface
(function_declaration name: (simple_identifier) @name) @definition.function
(protocol_function_declaration name: (simple_identifier) @name) @definition.function
(init_declaration name: "init" @name) @definition.method
(typealias_declaration name: (type_identifier) @name) @definition.type
