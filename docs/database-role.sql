-- The roles of the gate, with no more rights than it needs.
--
--   psql -v db=app -v schema=public -v owner=app_owner -f docs/database-role.sql -d app
--
-- Run it as a superuser, in the database that the gate is put in front of, and again after
-- an upgrade that names it, or for another database of the server: db is its name, schema the one of GATE_SEARCH_PATH, owner the role that owns
-- the tables. Afterwards give both roles a password (\password gate_reader,
-- \password gate_writer) or client certificates of their names.
-- The role for schema changes (GATE_DATABASE_DDL_URL) is the application's own
-- owner, or a role that you make for it.

-- The gate makes up to GATE_DB_POOL_MAX (16) connections for reads and as many for
-- writes; one role may be for both. Sessions that heed no cancel go on beside them, of one
-- client up to 14 for reads and as many for writes.
DO $$ BEGIN
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'gate_reader') THEN CREATE ROLE gate_reader; END IF;
  IF NOT EXISTS (SELECT FROM pg_catalog.pg_roles WHERE rolname = 'gate_writer') THEN CREATE ROLE gate_writer; END IF;
END $$;
ALTER ROLE gate_reader LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT CONNECTION LIMIT 64;
ALTER ROLE gate_writer LOGIN NOSUPERUSER NOCREATEDB NOCREATEROLE NOREPLICATION NOBYPASSRLS NOINHERIT CONNECTION LIMIT 64;
-- A default, not a wall: the wall is the grants.
ALTER ROLE gate_reader SET default_transaction_read_only = on;
-- A read may warn for each row, and an error quotes a value whole, up to a gigabyte: both
-- would fill the log of the server. LOG ranks above ERROR there, so what log_statement and
-- pgaudit write stays. What failed, and with which SQLSTATE, stands in the gate's own log.
ALTER ROLE gate_reader SET log_min_messages = log;
ALTER ROLE gate_writer SET log_min_messages = log;
-- Nor has what the server logs by itself (log_temp_files, log_lock_waits) the whole statement beside each line.
ALTER ROLE gate_reader SET log_min_error_statement = fatal;
ALTER ROLE gate_writer SET log_min_error_statement = fatal;
-- What the temporary files of one of their sessions may take of the disk.
ALTER ROLE gate_reader SET temp_file_limit = '4GB';
ALTER ROLE gate_writer SET temp_file_limit = '4GB';

REVOKE TEMPORARY ON DATABASE :"db" FROM PUBLIC;
GRANT CONNECT ON DATABASE :"db" TO gate_reader, gate_writer;
REVOKE CREATE ON SCHEMA public FROM PUBLIC;
GRANT USAGE ON SCHEMA :"schema" TO gate_reader, gate_writer;

GRANT SELECT ON ALL TABLES IN SCHEMA :"schema" TO gate_reader;
GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA :"schema" TO gate_writer;
GRANT USAGE ON ALL SEQUENCES IN SCHEMA :"schema" TO gate_writer;

-- Text cannot show what a function does. Grant them one by one, those that the
-- policy admits.
REVOKE EXECUTE ON ALL ROUTINES IN SCHEMA :"schema" FROM PUBLIC;

-- The same for what the owner makes later.
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" REVOKE EXECUTE ON ROUTINES FROM PUBLIC;
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"schema" GRANT SELECT ON TABLES TO gate_reader;
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"schema" GRANT SELECT, INSERT, UPDATE, DELETE ON TABLES TO gate_writer;
ALTER DEFAULT PRIVILEGES FOR ROLE :"owner" IN SCHEMA :"schema" GRANT USAGE ON SEQUENCES TO gate_writer;

-- Only for GATE_ENFORCE_PG_HBA_BASELINE: the gate reads the server's access rules.
GRANT SELECT ON pg_hba_file_rules TO gate_writer;
GRANT EXECUTE ON FUNCTION pg_hba_file_rules() TO gate_writer;
